//! Area `parse_ls`: listings.

use bastide_model::Result;
use bastide_model::listing::{FileEntry, parse_ls_la};
use serde_json::Value;

use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[("parse_ls_la", listing)];

fn listing(case: &Case<'_>) -> Result<Value> {
    let entries = parse_ls_la(case.text("output")?, case.text("base")?)?;
    Ok(entries.iter().map(show).collect())
}

pub(crate) fn show(entry: &FileEntry) -> Value {
    let mut shown = entry.to_json();
    shown["permissions_str"] = entry.permissions.to_string().into();
    shown["is_dir"] = entry.is_dir().into();
    shown
}
