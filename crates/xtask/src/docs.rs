//! `cargo xtask docs`: writes the reference pages that are made from the code.

mod examples;
mod manifest;

use std::fs;

use bastide_model::schema;

use crate::shell::{Outcome, cargo, read, say, top};

/// Where the schema of manifests is kept.
const MANIFEST_SCHEMA: &str = "docs/reference/manifest.schema.json";

/// The page of every field of a manifest.
const MANIFEST_PAGE: &str = "docs/manifest.md";

/// The page of every command.
const CLI_PAGE: &str = "docs/cli.md";

/// Writes all pages.
pub(crate) fn run() -> Outcome {
    let schema = schema::manifest();
    write(MANIFEST_SCHEMA, &format!("{schema:#}\n"))?;
    write(MANIFEST_PAGE, &manifest::page(&schema))?;
    let program = ["run", "--quiet", "--package", "bastide-cli", "--", "man", "--markdown"];
    write(CLI_PAGE, &read(&mut cargo(&program))?)
}

fn write(page: &str, text: &str) -> Outcome {
    fs::write(top().join(page), text).map_err(|error| format!("cannot write {page}: {error}"))?;
    say(&format!("wrote {page}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_manifests_is_up_to_date() {
        let wanted = manifest::page(&schema::manifest());
        if std::env::var_os("BASTIDE_TEST_UPDATE").is_some() {
            fs::write(top().join(MANIFEST_PAGE), &wanted).unwrap_or_default();
        }
        let page = fs::read_to_string(top().join(MANIFEST_PAGE)).unwrap_or_default();
        assert!(page == wanted, "run `cargo xtask docs`");
    }
}
