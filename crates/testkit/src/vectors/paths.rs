//! Areas `paths` and `paths_fs`: what paths mean and may reach.

use std::fs;
use std::path::Path;

use bastide_model::lax;
use bastide_model::paths::{
    AbsolutePaths, HostFiles, PathUse, SandboxWorkspaceScope, WorkspacePathPolicy, cwd_from_json,
    grant_host_path, resolve_workspace_path,
};
use bastide_model::{Error, ErrorKind, PathGrant, PosixPath, Result, WindowsPath};
use serde_json::{Value, json};

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
        show(policy(case)?.normalize_path_resolving(case.text("path")?, path_use(case)?, &Disk)?)
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
    ("coerce_posix_path", |case| show(PosixPath::typed(case.text("path")?))),
    ("windows_absolute_path", |case| {
        Ok(WindowsPath::absolute(case.text("path")?).map(|path| path.to_posix()).into())
    }),
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
        show(resolve_workspace_path(root, rel, AbsolutePaths::BelowRoot, &Disk)?)
    }),
    ("grant_host_path", |case| {
        make_tree(case)?;
        show(grant_host_path(&lax::read(case.get("grant"))?, &Disk)?)
    }),
    ("workspace_relpaths_overlap", |case| {
        let [a, b] = [case.text("a")?, case.text("b")?].map(PosixPath::new);
        Ok(a.overlaps(&b).into())
    }),
];

fn show(path: PosixPath) -> Result<Value> {
    Ok(path.as_str().into())
}

pub(crate) fn grants(values: &[Value]) -> Result<Vec<PathGrant>> {
    values.iter().map(lax::read).collect()
}

fn policy(case: &Case<'_>) -> Result<WorkspacePathPolicy> {
    WorkspacePathPolicy::new(case.text("root")?, grants(case.list("grants")?)?)
}

fn scope(case: &Case<'_>) -> Result<SandboxWorkspaceScope> {
    SandboxWorkspaceScope::from_cwd(case.optional_text("cwd")?)
}

fn normalize_path(case: &Case<'_>) -> Result<Value> {
    show(policy(case)?.normalize_path(case.text("path")?, path_use(case)?)?)
}

fn path_use(case: &Case<'_>) -> Result<PathUse> {
    Ok(if case.flag("for_write", false)? { PathUse::Write } else { PathUse::Read })
}

fn resolve_workspace(case: &Case<'_>) -> Result<Value> {
    let absolute = match case.flag("allow_absolute_within_root", false)? {
        true => AbsolutePaths::BelowRoot,
        false => AbsolutePaths::Refused,
    };
    show(resolve_workspace_path(case.text("root")?, case.text("rel")?, absolute, &Disk)?)
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
