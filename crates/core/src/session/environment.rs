//! The environment of a session's commands.

use std::path::PathBuf;

use bastide_model::Manifest;
use bastide_proto::GuestPath;

/// What programs find things by where nobody says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where commands search for programs.
pub(crate) fn search_path(environment: &[(String, String)]) -> Vec<PathBuf> {
    let path = environment.iter().find(|(key, _)| key == "PATH");
    path.map(|(_, path)| std::env::split_paths(path).collect()).unwrap_or_default()
}

/// What every command starts with: the caller's choice, then the manifest's. A machine with a system of
/// its own says itself where programs and homes are; elsewhere there is a `PATH`, and `HOME` is the workspace,
/// whatever the manifest says, unless the caller chose another `home`.
pub(crate) fn environment(
    root: &GuestPath,
    manifest: &Manifest,
    given: Vec<(String, String)>,
    home: Option<String>,
    own_system: bool,
) -> Vec<(String, String)> {
    let path = ("PATH".to_owned(), PATH.to_owned());
    let mut all = Vec::from_iter((!own_system).then_some(path));
    let manifest = manifest.environment.fixed();
    let home = home.or_else(|| (!own_system).then(|| root.as_str().to_owned()));
    let home = home.map(|home| ("HOME".to_owned(), home));
    for (key, value) in given.into_iter().chain(manifest).chain(home) {
        all.retain(|(other, _)| *other != key);
        all.push((key, value));
    }
    all
}
