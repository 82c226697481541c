//! `cargo xtask check`: what can be seen by reading.

mod architecture;
mod bool_parameters;
mod edges;
pub(crate) mod guest;
mod licences;
mod option_names;
mod pages;
mod sizes;
mod todo;
mod tree;
mod upstream;

use crate::shell::{self, Outcome, cargo, say, step};

/// Runs every check; the first that fails ends it.
pub(crate) fn run() -> Outcome {
    step("format");
    shell::run(&mut cargo(&["fmt", "--all", "--check"]))?;
    step("crate edges and licences");
    let metadata = edges::metadata()?;
    edges::check(&metadata)?;
    licences::check(&metadata)?;
    step("sizes and names of files");
    sizes::check()?;
    todo::check()?;
    step("pages of crates");
    pages::check()?;
    step("options and parameters of libraries");
    option_names::check()?;
    bool_parameters::check()?;
    step("what ARCHITECTURE.md names");
    architecture::check()?;
    step("tests of the reference");
    upstream::check()?;
    step("lints");
    let lints = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    shell::run(&mut cargo(&lints))?;
    step("what the guest is linked with");
    guest::check()?;
    say("all checks hold");
    Ok(())
}
