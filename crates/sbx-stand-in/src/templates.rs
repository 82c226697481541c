//! Templates: what is on the disk of a sandbox, for new ones. A local sandbox has no disk of its own but what stands for
//! one, so that is what is saved.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bastide::SessionId;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::state::{Database, say};
use crate::{Failure, Outcome, fail};

/// The file of each template, by its tag.
type Templates = BTreeMap<String, String>;

const STORED: &str = "templates.json";

pub(crate) fn template(world: &Database, rest: &[String]) -> Outcome {
    let verb = rest.first().map_or("", String::as_str);
    let rest = rest.get(1..).unwrap_or_default();
    match verb {
        "save" => save(world, rest),
        "load" => load(world, rest),
        "ls" => list(world, rest),
        "rm" => remove(world, rest),
        other => fail(format!("unknown command {other:?} for \"sbx template\"")),
    }
}

fn save(world: &Database, rest: &[String]) -> Outcome {
    let given = Arguments::parse(rest, &[(&["-o", "--output"], true)], usize::MAX)?;
    let (name, tag) = (given.word(0, "SANDBOX")?, given.word(1, "TAG")?);
    if world.sandbox(name)?.running {
        return fail(format!(
            "sandbox '{name}' must be stopped first, and there is no terminal to ask"
        ));
    }
    let file = new_file(world)?;
    tar(&["-cf", &file.to_string_lossy(), "-C"], &world.path("disks").join(name))?;
    if let Some(output) = given.value("-o") {
        fs::copy(&file, output)?;
    }
    remember(world, tag, &file)?;
    say(format!("Saved {tag}"))
}

fn load(world: &Database, rest: &[String]) -> Outcome {
    let given = Arguments::parse(rest, &[], usize::MAX)?;
    let from = Path::new(given.word(0, "FILE")?);
    let file = new_file(world)?;
    fs::copy(from, &file)?;
    let name = from.file_stem().map(|name| name.to_string_lossy().into_owned());
    let tag = name.unwrap_or_default();
    remember(world, &tag, &file)?;
    say(format!("Loaded {tag}"))
}

fn list(world: &Database, rest: &[String]) -> Outcome {
    let known: &[(&[&str], bool)] = &[(&["--json"], false), (&["-q", "--quiet"], false)];
    let given = Arguments::parse(rest, known, usize::MAX)?;
    let all: Templates = world.load(STORED)?;
    if given.has("--json") {
        let rows: Vec<Value> = all.keys().map(|tag| json!({"tag": tag})).collect();
        return say(json!({"templates": rows}).to_string());
    }
    if !given.has("-q") {
        say("TAG")?;
    }
    all.keys().try_for_each(|tag| say(tag).map(drop))?;
    Ok(0)
}

fn remove(world: &Database, rest: &[String]) -> Outcome {
    let given = Arguments::parse(rest, &[(&["-f", "--force"], false)], usize::MAX)?;
    let tag = given.word(0, "TAG")?;
    if !given.has("-f") {
        return fail("removing a template needs a confirmation, and there is no terminal");
    }
    let file = world.change(STORED, |all: &mut Templates| Ok(all.remove(tag)))?;
    match file {
        Some(file) => {
            fs::remove_file(file)?;
            say(format!("Removed {tag}"))
        }
        None => fail(format!("template '{tag}' not found")),
    }
}

/// Puts what a template has onto the disk of a new sandbox. Any other name is an image, which a stand-in has none of.
pub(crate) fn unpack(world: &Database, tag: &str, sandbox: &str) -> Result<(), Failure> {
    let all: Templates = world.load(STORED)?;
    let Some(file) = all.get(tag) else { return Ok(()) };
    let disk = world.path("disks").join(sandbox);
    fs::create_dir_all(&disk)?;
    tar(&["-xf", file, "-C"], &disk)
}

fn new_file(world: &Database) -> Result<PathBuf, Failure> {
    let folder = world.path("templates");
    fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("{}.tar", SessionId::random())))
}

fn remember(world: &Database, tag: &str, file: &Path) -> Result<(), Failure> {
    let file = file.to_string_lossy().into_owned();
    let before =
        world.change(STORED, |all: &mut Templates| Ok(all.insert(tag.to_owned(), file)))?;
    before.map_or(Ok(()), |before| Ok(fs::remove_file(before)?))
}

fn tar(words: &[&str], folder: &Path) -> Result<(), Failure> {
    let done =
        Command::new("tar").args(words).arg(folder).arg(".").stdin(Stdio::null()).output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(Failure(1, String::from_utf8_lossy(&done.stderr).trim().to_owned())),
    }
}
