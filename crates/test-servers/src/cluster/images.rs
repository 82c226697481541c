//! The images of the tests as archives that a node takes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{read, run_quietly};
use crate::engine::images::{self, Tree};

/// What holds the namespaces of a pod.
pub(super) const PAUSE: &str = "bastide-test/pause";

/// Makes the archives that are not there yet.
pub(super) fn prepare(folder: &Path) -> io::Result<()> {
    let archives = folder.join("images");
    if archives.exists() {
        return Ok(());
    }
    let unfinished = folder.join("images.unfinished");
    drop(fs::remove_dir_all(&unfinished));
    fs::create_dir_all(&unfinished)?;
    let trees = tempfile::tempdir()?;
    for tree in images::trees(trees.path())? {
        archive(&unfinished, &tree)?;
    }
    let pause = trees.path().join("pause");
    fs::create_dir(&pause)?;
    fs::copy(folder.join("packages/bin/busybox"), pause.join("sleep"))?;
    let config = json!({"Entrypoint": ["/sleep", "2147483647"]});
    archive(&unfinished, &Tree { name: PAUSE, path: pause, config })?;
    fs::rename(unfinished, archives)
}

/// All archives there are.
pub(super) fn archives(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder.join("images"))?.map(|entry| Ok(entry?.path())).collect()
}

/// Packs a tree as an image of one layer, in the form that `docker save` has.
fn archive(into: &Path, tree: &Tree) -> io::Result<()> {
    let parts = tempfile::tempdir_in(into)?;
    let layer = parts.path().join("layer.tar");
    images::pack(&tree.path, &layer)?;
    let config = json!({
        "architecture": architecture(), "os": "linux", "config": tree.config, "history": [],
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer)?)]},
    });
    let written = parts.path().join("config");
    fs::write(&written, config.to_string())?;
    let named = format!("{}.json", digest(&written)?);
    fs::rename(&written, parts.path().join(&named))?;
    let manifest: Value = json!([{"Config": named, "RepoTags": [format!("{}:latest", tree.name)], "Layers": ["layer.tar"]}]);
    fs::write(parts.path().join("manifest.json"), manifest.to_string())?;
    let archive = into.join(format!("{}.tar", tree.name.replace('/', "-")));
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(archive).arg("--directory").arg(parts.path());
    run_quietly(tar.args([&named, "layer.tar", "manifest.json"]))
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

fn digest(file: &Path) -> io::Result<String> {
    let said = read(Command::new("sha256sum").arg(file))?;
    let digest = said.split_whitespace().next().ok_or(io::ErrorKind::InvalidData)?;
    Ok(digest.to_owned())
}
