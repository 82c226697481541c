//! Areas `paths` and `paths_fs`: what paths mean and may reach.

use std::fs;
use std::path::Path;

use bastide_model::paths::{
    HostFiles, PathGrantRule, PosixPath, SandboxWorkspaceScope, WorkspacePathPolicy, cwd_from_json,
    grant_host_path, resolve_workspace_path, windows_absolute_path,
};
use bastide_model::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use super::case::malformed;
use super::{Case, Handler, tree};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("normalize_path", normalize_path),
    ("normalize_path_existing_root", |case| {
        make_tree(case)?;
        normalize_path(case)
    }),
    // The reference's two functions differ only on Windows.
    ("normalize_sandbox_path", normalize_path),
    ("normalize_path_resolving", |case| {
        make_tree(case)?;
        let for_write = case.flag("for_write", false)?;
        show(policy(case)?.normalize_path_resolving(case.text("path")?, for_write, &Disk)?)
    }),
    ("absolute_workspace_path", |case| {
        show(policy(case)?.absolute_workspace_path(case.text("path")?)?)
    }),
    ("relative_path", |case| show(policy(case)?.relative_path(case.text("path")?)?)),
    ("sandbox_root", |case| Ok(policy(case)?.sandbox_root().as_str().into())),
    ("validate_recursive_remove", |case| {
        policy(case)?.validate_recursive_remove(case.text("path")?)?;
        Ok(Value::Null)
    }),
    ("extra_path_grant_rules", |case| {
        let rules = policy(case)?.extra_path_grant_rules()?;
        Ok(rules.iter().map(|(path, read_only)| json!([path.as_str(), read_only])).collect())
    }),
    ("coerce_posix_path", |case| show(PosixPath::coerce(case.text("path")?))),
    ("windows_absolute_path", |case| Ok(windows_absolute_path(case.text("path")?).into())),
    ("normalize_sandbox_cwd", |case| show(cwd_from_json(case.get("cwd"))?)),
    ("scope_anchor", |case| Ok(scope(case)?.anchor(case.text("path")?).into())),
    ("scope_model_path", |case| show(scope(case)?.model_path(case.text("path")?)?)),
    ("scope_model_resource_path", |case| {
        show(scope(case)?.model_resource_path(case.text("root")?, case.text("path")?)?)
    }),
    ("scope_display_path", |case| {
        show(scope(case)?.display_path(case.text("original")?, case.text("path")?)?)
    }),
    ("resolve_workspace_path", resolve_workspace),
    ("resolve_workspace_path_fs", |case| {
        make_tree(case)?;
        let (root, rel) = (case.text("root")?, case.text("rel")?);
        show(resolve_workspace_path(root, rel, true, &Disk)?)
    }),
    ("grant_host_path", |case| {
        make_tree(case)?;
        show(grant_host_path(&grant(case.get("grant"))?, &Disk)?)
    }),
    ("workspace_relpaths_overlap", |case| {
        let [a, b] = [case.text("a")?, case.text("b")?].map(PosixPath::parse);
        Ok(a.overlaps(&b).into())
    }),
];

fn show(path: PosixPath) -> Result<Value> {
    Ok(path.as_str().into())
}

fn grant(value: &Value) -> Result<PathGrantRule> {
    let path = value["path"].as_str().ok_or_else(|| malformed("grants", "paths"))?;
    Ok(PathGrantRule {
        path: bastide_model::paths::normalize(path),
        read_only: value["read_only"].as_bool().unwrap_or_default(),
        host_path: value["host_path"].as_str().map(str::to_owned),
    })
}

fn policy(case: &Case<'_>) -> Result<WorkspacePathPolicy> {
    let grants: Result<Vec<_>> = case.list("grants")?.iter().map(grant).collect();
    WorkspacePathPolicy::new(case.text("root")?, grants?)
}

fn scope(case: &Case<'_>) -> Result<SandboxWorkspaceScope> {
    SandboxWorkspaceScope::from_cwd(case.optional_text("cwd")?)
}

fn normalize_path(case: &Case<'_>) -> Result<Value> {
    let for_write = case.flag("for_write", false)?;
    show(policy(case)?.normalize_path(case.text("path")?, for_write)?)
}

fn resolve_workspace(case: &Case<'_>) -> Result<Value> {
    let allow_absolute = case.flag("allow_absolute_within_root", false)?;
    show(resolve_workspace_path(case.text("root")?, case.text("rel")?, allow_absolute, &Disk)?)
}

fn make_tree(case: &Case<'_>) -> Result<()> {
    tree::create(case.scratch.path()?, case.list("tree")?)
}

/// The files of this machine.
#[derive(Debug)]
pub(crate) struct Disk;

impl HostFiles for Disk {
    fn read_link(&self, path: &str) -> Result<Option<String>> {
        let Ok(target) = fs::read_link(path) else { return Ok(None) };
        match target.into_os_string().into_string() {
            Ok(target) => Ok(Some(target)),
            Err(_) => Err(Error::new(ErrorKind::InvalidInput, "a link's target is not UTF-8")),
        }
    }

    fn exists(&self, path: &str) -> bool {
        Path::new(path).exists()
    }
}
