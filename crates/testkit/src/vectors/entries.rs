//! Area `entries`: entries, mount strategies and mount patterns.

use bastide_model::entry::GitRepo;
use bastide_model::lax::{self, Dump};
use bastide_model::mount::{MountPattern, MountStrategy};
use bastide_model::{Entry, Registry, Result};
use serde_json::{Value, json};

use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("entry_parse", |case| lax::read::<Entry>(case.get("entry"))?.dump()),
    ("mount_strategy_parse", |case| lax::read::<MountStrategy>(case.get("strategy"))?.dump()),
    ("mount_pattern_parse", |case| lax::read::<MountPattern>(case.get("pattern"))?.dump()),
    ("registered_entry_types", registered_entry_types),
    ("file_entry_dump", file_entry_dump),
    ("git_validate_subpath", git_validate_subpath),
    ("git_looks_like_commit_ref", git_looks_like_commit_ref),
];

fn registered_entry_types(_: &Case<'_>) -> Result<Value> {
    Ok(Registry::builtin().entry_types().collect())
}

fn file_entry_dump(case: &Case<'_>) -> Result<Value> {
    Ok(json!({ "dump": Entry::file(case.bytes("content_b64")?).dump()? }))
}

fn git_validate_subpath(case: &Case<'_>) -> Result<Value> {
    let subpath = case.optional_text("subpath")?.map(str::to_owned);
    let repo = GitRepo { subpath, ..GitRepo::new("o/r", "main") };
    repo.checked_subpath()?.dump()
}

fn git_looks_like_commit_ref(case: &Case<'_>) -> Result<Value> {
    Ok(GitRepo::new("o/r", case.text("ref")?).looks_like_commit().into())
}
