//! The workspace that somebody wants.

mod coerce;
mod describe;
mod load;
mod mount_targets;
mod remote_mounts;
mod skip;
mod tree;
mod walk;

use std::collections::BTreeSet;

use indexmap::IndexMap;
use serde_json::Value;

pub use describe::{MAX_DESCRIPTION_CHARS, render_description, truncate_description};
pub(crate) use walk::{MAX_KEY, coerce_rel_path, mount_target, normalize_within_root};
pub use walk::{MountTarget, Walk, normalize_in_workspace, rel_path};

use crate::Result;
use crate::entry::{self, Entry};
use crate::environment::Environment;
use crate::lax::{Checked, Dump, FromInput, Input, Object, is_int};
use crate::path_grant::PathGrant;
use crate::users::{Group, User};

/// Where the workspace is unless the manifest says otherwise.
pub const DEFAULT_ROOT: &str = "/workspace";

/// The commands that are safe on remote mounts, unless the manifest says otherwise.
pub const DEFAULT_REMOTE_MOUNT_COMMANDS: [&str; 18] = [
    "ls", "find", "stat", "cat", "less", "head", "tail", "du", "grep", "rg", "wc", "sort", "cut",
    "cp", "tee", "echo", "mkdir", "rm",
];

/// The workspace that somebody wants.
///
/// Reading a manifest checks its shape. Paths are checked when it is walked, for example by
/// [`validated_entries`](Self::validated_entries).
///
/// ```
/// use bastide_model::{Entry, Manifest};
/// use bastide_model::lax::{self, Dump};
/// use serde_json::json;
///
/// let manifest: Manifest = lax::read(&json!({
///     "entries": {"src/main.rs": {"type": "file", "content": "fn main() {}"}},
/// }))?;
/// assert_eq!(manifest.root, "/workspace");
/// assert_eq!(manifest.entries["src/main.rs"], Entry::file("fn main() {}"));
/// assert_eq!(manifest.dump()?["entries"]["src/main.rs"]["content"], "fn main() {}");
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Where the workspace is inside the sandbox. Not checked here.
    pub root: String,
    /// What is in it, by path, in the order in which it is made.
    pub entries: IndexMap<String, Entry>,
    /// The environment of every command.
    pub environment: Environment,
    /// Users to make.
    pub users: Vec<User>,
    /// Groups to make.
    pub groups: Vec<Group>,
    /// Access to paths outside the workspace.
    pub extra_path_grants: Vec<PathGrant>,
    /// The commands that models are told to use on remote mounts.
    pub remote_mount_command_allowlist: Vec<String>,
    /// Which mounts may show credentials to the sandbox. A program grants this at run time; it is
    /// never read from input and never written.
    pub mount_exposure: MountExposure,
}

/// The mounts whose credentials a program allows to be visible inside the sandbox, by path key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountExposure {
    /// Credentials that are good for the mount only.
    pub mount_scoped: BTreeSet<String>,
    /// Credentials that are good for more, such as a managed identity.
    pub broad: BTreeSet<String>,
}

impl Default for Manifest {
    fn default() -> Self {
        Self {
            root: DEFAULT_ROOT.to_owned(),
            entries: IndexMap::new(),
            environment: Environment::default(),
            users: Vec::new(),
            groups: Vec::new(),
            extra_path_grants: Vec::new(),
            remote_mount_command_allowlist: usual_commands(),
            mount_exposure: MountExposure::default(),
        }
    }
}

fn usual_commands() -> Vec<String> {
    DEFAULT_REMOTE_MOUNT_COMMANDS.map(str::to_owned).to_vec()
}

/// Names under which input might try to grant what only a program may; each also with a `_` in
/// front.
const EXPOSURE_KEYS: [&str; 7] = [
    "in_container_mount_credential_exposure_allowed_paths",
    "inContainerMountCredentialExposureAllowedPaths",
    "in_container_mount_credential_exposure_acknowledged_paths",
    "inContainerMountCredentialExposureAcknowledgedPaths",
    "in_container_mount_broad_credential_exposure_acknowledged_paths",
    "inContainerMountBroadCredentialExposureAcknowledgedPaths",
    "mount_credential_exposure_policy",
];

fn grants_exposure(key: &str) -> bool {
    EXPOSURE_KEYS.contains(&key.strip_prefix('_').unwrap_or(key))
}

/// The keys of a manifest, in the reference's order.
pub(crate) const KEYS: [&str; 8] = [
    "version",
    "root",
    "entries",
    "environment",
    "users",
    "groups",
    "extra_path_grants",
    "remote_mount_command_allowlist",
];

impl FromInput for Manifest {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let map = input.value().as_object();
        if map.is_some_and(|map| map.keys().any(|key| grants_exposure(key))) {
            return Err(input.type_error(
                "In-container mount credential exposure must be configured on a trusted Manifest \
                 instance, not in manifest input.",
            ));
        }
        let mut fields = input.fields("Manifest")?;
        fields.or_with("version", (), version);
        let root = fields.or("root", DEFAULT_ROOT.to_owned());
        let entries = fields.or_with("entries", IndexMap::new(), entry::entries);
        let environment = fields.or_default("environment");
        let users = fields.or_default("users");
        let groups = fields.or_default("groups");
        let grants = fields
            .or_with("extra_path_grants", Vec::new(), |input| input.tuple(PathGrant::from_input));
        let commands = fields.or("remote_mount_command_allowlist", usual_commands());
        fields.build(|| {
            Some(Self {
                root: root?,
                entries: entries?,
                environment: environment?,
                users: users?,
                groups: groups?,
                extra_path_grants: grants?,
                remote_mount_command_allowlist: commands?,
                mount_exposure: MountExposure::default(),
            })
        })
    }
}

/// There is one version, and it is a number; `true` and `1.0` are the same number to the reference.
fn version(input: Input<'_>) -> Checked<()> {
    let refused = || input.field_error("literal_error", "Input should be 1");
    match input.value() {
        Value::Bool(true) => Ok(()),
        Value::Number(number) if is_int(number) => {
            if input.int()? == 1 {
                Ok(())
            } else {
                Err(refused())
            }
        }
        Value::Number(number) if number.as_f64() == Some(1.0) => Ok(()),
        _ => Err(refused()),
    }
}

impl Dump for Manifest {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("version", &1_i128)?;
        out.put("root", &self.root)?;
        out.put("entries", &self.entries)?;
        out.put("environment", &self.environment)?;
        out.put("users", &self.users)?;
        out.put("groups", &self.groups)?;
        out.put("extra_path_grants", &self.extra_path_grants)?;
        out.put("remote_mount_command_allowlist", &self.remote_mount_command_allowlist)?;
        Ok(out.into())
    }
}
