//! What is inside a sandbox, by allow-list.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use bastide::NetworkAccess;
use bastide_proto::boot::{RootStep, UserAndGroup};

use crate::homes;
use crate::host::{self, HostFile};
use crate::toolchains::{HostView, Toolchains};
use crate::user::Identity;

/// Folders of the host that commands see, read-only. On most systems all but the first are links
/// into it.
const SYSTEM: [&str; 8] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt"];

/// Devices that keep no state and reach no hardware.
pub(crate) const DEVICES: [&str; 6] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// Where the files of users and groups really are, and what else of `/etc` is the session's own.
pub(crate) const ACCOUNTS: &str = "/run/accounts";

/// Where the configuration of cargo is in sessions whose network has a policy: a part of [`ACCOUNTS`].
pub(crate) const CARGO_CONFIG: &str = "/run/accounts/cargo.toml";

/// What of `/etc` programs need in order to run, and nobody needs to hide.
const ETC: [&str; 12] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/perl",
    "/etc/pki/tls/certs",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
];

/// Whether commands see this path of the host whatever the session is.
pub(crate) fn shows(path: &Path) -> bool {
    let is_plain = !path.components().any(|part| part == Component::ParentDir);
    is_plain && SYSTEM.iter().chain(&ETC).any(|shown| path.starts_with(shown))
}

/// How names in `/etc` begin of folders that interpreters and browsers do not run without.
const ETC_OF_INTERPRETERS: [&str; 3] = ["chromium", "java-", "python3"];

/// The folders of interpreters in `/etc`. It is long, and hardly ever changes: it is read again when it
/// has.
fn interpreters() -> Vec<String> {
    static KNOWN: Mutex<Option<(SystemTime, Vec<String>)>> = Mutex::new(None);
    // Taken before the folder is read: what changes meanwhile is seen the next time.
    let changed = fs::metadata("/etc").and_then(|etc| etc.modified()).ok();
    // Whoever forked this process may have had it locked, for ever.
    let Ok(mut known) = KNOWN.try_lock() else { return find_interpreters() };
    if let Some((when, found)) = &*known
        && Some(*when) == changed
    {
        return found.clone();
    }
    let found = find_interpreters();
    *known = changed.map(|changed| (changed, found.clone()));
    found
}

fn find_interpreters() -> Vec<String> {
    let entries = fs::read_dir("/etc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let theirs = |name: &String| ETC_OF_INTERPRETERS.iter().any(|begin| name.starts_with(begin));
    let mut found: Vec<_> = names.filter(theirs).map(|name| format!("/etc/{name}")).collect();
    found.sort_unstable();
    found
}

/// What a sandbox with a root of its own is to be like.
#[derive(Debug)]
pub(crate) struct RootSpec<'a> {
    /// Where the workspace is.
    pub(crate) root: &'a str,
    pub(crate) who: &'a Identity,
    /// Which network commands have.
    pub(crate) network: NetworkAccess,
    /// How much scratch space there is, if that is limited.
    pub(crate) scratch: Option<u64>,
}

impl RootSpec<'_> {
    /// Whether the workspace is a folder of its own right in the root.
    pub(crate) fn has_plain_root(&self) -> bool {
        let taken = ["/dev", "/etc", "/proc", "/run", "/tmp", "/var"];
        let is_single = self.root.rfind('/') == Some(0) && self.root.len() > 1;
        is_single && !taken.iter().chain(&SYSTEM).any(|taken| *taken == self.root)
    }
}

/// The steps that begin the root of a sandbox, the same for every session that asks for the same.
pub(crate) fn base_steps(inside: &RootSpec<'_>, toolchains: &Toolchains) -> Vec<RootStep> {
    let mut steps = Vec::with_capacity(64);
    for path in SYSTEM {
        show(&mut steps, path);
    }
    // Before anything that may lie in it.
    for target in ["/tmp", "/run", "/var/tmp"] {
        folder(&mut steps, target);
    }
    let size = inside.scratch;
    steps.push(RootStep::Tmpfs { target: "/tmp".to_owned(), mode: 0o1777, size });
    for path in toolchains.shown.iter().filter_map(|path| path.to_str()) {
        show(&mut steps, path);
    }
    etc(&mut steps, inside);
    if inside.network == NetworkAccess::Policy {
        // Where cargo looks whatever it works on. The session says what is there, if anything is.
        folder(&mut steps, "/.cargo");
        let (target, to) = ("/.cargo/config.toml".to_owned(), format!("..{CARGO_CONFIG}"));
        steps.push(RootStep::Link { target, to });
    }
    devices(&mut steps, inside.scratch);
    folder(&mut steps, "/proc");
    steps.push(RootStep::Proc { target: "/proc".to_owned() });
    if inside.has_plain_root() {
        folder(&mut steps, inside.root);
    }
    steps
}

/// What of `/proc` is no process, and changes something where it is written to: settings of the session's own namespaces
/// above all, which are root's inside.
const SETTINGS: [&str; 4] = ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"];

/// The steps that finish it for one session; `files` are its own storage or the host's folder, and what
/// of the host is there besides.
pub(crate) fn session_steps(
    hostname: &str,
    network: NetworkAccess,
    files: &[HostFile],
    nested_sandbox: bool,
) -> Vec<RootStep> {
    let mut steps = Vec::new();
    // The kernel lets nobody mount another `/proc` beside one of which something is covered.
    if !nested_sandbox {
        let closed = SETTINGS.map(|target| RootStep::ReadOnly { target: target.to_owned() });
        steps.extend(closed);
    }
    let hosts = format!("127.0.0.1 localhost {hostname}\n::1 localhost\n");
    let hosts = [hosts, shared("/etc/hosts", network == NetworkAccess::Host)].concat();
    for (name, content) in [("hostname", format!("{hostname}\n")), ("hosts", hosts)] {
        steps.push(RootStep::File { target: format!("{ACCOUNTS}/{name}"), content });
    }
    let depth = |target: &str| target.split('/').count();
    let mut pins: Vec<&str> = files.iter().flat_map(|file| host::around(file, files)).collect();
    pins.sort_unstable_by_key(|pin| (depth(pin), *pin));
    pins.dedup();
    let mut pins = pins.into_iter().peekable();
    let mut files: Vec<_> = files.iter().collect();
    // What lies in something else comes after it.
    files.sort_by_key(|file| depth(&file.target));
    for file in files {
        while let Some(pin) = pins.next_if(|pin| depth(pin) < depth(&file.target)) {
            steps.push(RootStep::Pin { target: pin.to_owned() });
        }
        own(&mut steps, file);
    }
    steps
}

/// What a file of the host says. With the host's network, names mean what they mean there.
fn shared(path: &str, network: bool) -> String {
    match network {
        true => fs::read_to_string(path).unwrap_or_default(),
        false => String::new(),
    }
}

/// Who is asked for names. Where the network has a policy any address leads to the proxy; this one is its own.
fn resolv_conf(network: NetworkAccess) -> String {
    match network {
        NetworkAccess::Policy => "nameserver 198.18.0.1\noptions timeout:2 attempts:2\n".to_owned(),
        network => shared("/etc/resolv.conf", network == NetworkAccess::Host),
    }
}

/// What else of `/etc` programs need where they see the host's own: who and what there is by name.
const ETC_OF_HOST: [&str; 12] = [
    "/etc/group",
    "/etc/host.conf",
    "/etc/hostname",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/profile",
    "/etc/profile.d",
    "/etc/protocols",
    "/etc/services",
    "/etc/shells",
    "/etc/timezone",
];

/// What programs need of it to use the network.
const ETC_OF_NETWORK: [&str; 3] = ["/etc/gai.conf", "/etc/hosts", "/etc/resolv.conf"];

/// The same, as what may be read of the host itself.
pub(crate) fn readable(toolchains: &Toolchains, network: bool) -> Vec<String> {
    let fixed = SYSTEM.iter().chain(&ETC).chain(&ETC_OF_HOST);
    let network = ETC_OF_NETWORK.iter().filter(|_| network);
    let shown = toolchains.shown.iter().filter_map(|path| path.to_str());
    let fixed = fixed.chain(network).copied().chain(shown).map(str::to_owned);
    fixed.chain(interpreters()).collect()
}

/// The compilers and interpreters of a search path that are not among the system folders.
pub(crate) fn toolchains(search_path: &[PathBuf]) -> Toolchains {
    let is_system = |path: &Path| SYSTEM.iter().any(|system| path.starts_with(system));
    let homes = homes::all();
    let look = HostView { is_system: &is_system, exists: &Path::exists, homes: &homes };
    Toolchains::find(search_path.iter().map(PathBuf::as_path), look)
}

/// Something of the host that keeps its owners.
fn own(steps: &mut Vec<RootStep>, file: &HostFile) {
    let HostFile { source, target, writable, is_dir, owner, identity, .. } = file;
    let (source, target, writable, identity) =
        (source.clone(), target.clone(), *writable, *identity);
    parents(steps, &target);
    steps.push(RootStep::MountPoint { target: target.clone(), is_dir: *is_dir });
    let owner = Some(*owner);
    steps.push(RootStep::BindOwned { source, target, writable, owner, identity });
}

/// Shows a file or folder of the host as it is, read-only; a link stays a link; what the host does
/// not have is left out.
fn show(steps: &mut Vec<RootStep>, path: &str) {
    let Ok(metadata) = fs::symlink_metadata(path) else { return };
    let target = path.to_owned();
    parents(steps, path);
    if metadata.is_symlink() {
        let Ok(to) = fs::read_link(path) else { return };
        let Some(to) = to.to_str() else { return };
        steps.push(RootStep::Link { target, to: to.to_owned() });
        return;
    }
    if metadata.is_dir() {
        folder(steps, path);
    } else {
        steps.push(RootStep::File { target: target.clone(), content: String::new() });
    }
    let version = version(&metadata);
    steps.push(RootStep::Bind { source: PathBuf::from(path), target, writable: false, version });
}

/// What tells a file from one that takes its place, or from itself when it is changed; what is in a folder
/// does not matter.
fn version(metadata: &fs::Metadata) -> u64 {
    let changed =
        if metadata.is_file() { metadata.ctime_nsec() ^ metadata.ctime() << 30 } else { 0 };
    let which = metadata.ino() ^ metadata.dev().rotate_left(40);
    which ^ changed.cast_unsigned().rotate_left(16)
}

/// A folder and its parents.
fn folder(steps: &mut Vec<RootStep>, path: &str) {
    parents(steps, path);
    steps.push(RootStep::Dir { target: path.to_owned(), mode: 0o755 });
}

fn parents(steps: &mut Vec<RootStep>, path: &str) {
    let ends = path.match_indices('/').map(|(end, _)| end).skip(1);
    for end in ends {
        let step = RootStep::Dir { target: path[..end].to_owned(), mode: 0o755 };
        if !steps.contains(&step) {
            steps.push(step);
        }
    }
}

/// An `/etc` that is built, not shared: accounts, names and the little programs need to run.
fn etc(steps: &mut Vec<RootStep>, inside: &RootSpec<'_>) {
    let RootSpec { root, who, network, .. } = inside;
    let (name, UserAndGroup { uid, gid }) = (who.name, who.inside);
    let mut passwd = format!("{name}:x:{uid}:{gid}::{root}:/bin/sh\n");
    let mut group = format!("{name}:x:{gid}:\n");
    if uid != 0 {
        passwd.push_str("root:x:0:0::/root:/bin/sh\n");
        group.push_str("root:x:0:\n");
    }
    passwd.push_str("nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n");
    group.push_str("nogroup:x:65534:\n");
    folder(steps, "/etc");
    accounts(steps, &[("passwd", passwd), ("group", group)]);
    let files = [
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".to_owned()),
        ("resolv.conf", resolv_conf(*network)),
        ("shells", "/bin/sh\n/bin/bash\n".to_owned()),
    ];
    for (name, content) in files {
        steps.push(RootStep::File { target: format!("/etc/{name}"), content });
    }
    if Path::new("/etc/os-release").exists() {
        let (target, to) = ("/etc/os-release".to_owned(), "../usr/lib/os-release".to_owned());
        steps.push(RootStep::Link { target, to });
    }
    for path in ETC {
        show(steps, path);
    }
    for path in interpreters() {
        show(steps, &path);
    }
}

/// The accounts lie where the guest can add some: everything else around the workspace is closed.
/// Commands may not write there.
fn accounts(steps: &mut Vec<RootStep>, files: &[(&str, String)]) {
    folder(steps, ACCOUNTS);
    steps.push(RootStep::Tmpfs { target: ACCOUNTS.to_owned(), mode: 0o755, size: Some(4 << 20) });
    for (name, content) in files {
        let place = format!("{ACCOUNTS}/{name}");
        steps.push(RootStep::File { target: place, content: content.clone() });
        steps.push(link_to_accounts(name));
    }
    for name in ["hostname", "hosts"] {
        steps.push(link_to_accounts(name));
    }
}

fn link_to_accounts(name: &str) -> RootStep {
    RootStep::Link { target: format!("/etc/{name}"), to: format!("..{ACCOUNTS}/{name}") }
}

fn devices(steps: &mut Vec<RootStep>, size: Option<u64>) {
    folder(steps, "/dev");
    for device in DEVICES {
        show(steps, device);
    }
    for (target, to) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
        ("/dev/ptmx", "pts/ptmx"),
    ] {
        steps.push(RootStep::Link { target: target.to_owned(), to: to.to_owned() });
    }
    for target in ["/dev/pts", "/dev/shm"] {
        folder(steps, target);
    }
    steps.push(RootStep::Devpts { target: "/dev/pts".to_owned() });
    steps.push(RootStep::Tmpfs { target: "/dev/shm".to_owned(), mode: 0o1777, size });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_every_folder_before_what_lies_in_it() {
        let who = Identity::of_caller().unwrap();
        let file = |target: &str, is_dir| HostFile {
            source: PathBuf::from("/storage"),
            target: target.to_owned(),
            writable: true,
            is_dir,
            is_own: false,
            owner: UserAndGroup { uid: 0, gid: 0 },
            identity: None,
        };
        let files = [
            file("/srv/deep/work/inner/file", false),
            file("/srv/deep/work", true),
            file("/tmp/granted", true),
        ];
        let root = "/srv/deep/work";
        let network = NetworkAccess::None;
        let inside = RootSpec { root, who: &who, network, scratch: None };
        let mut steps = base_steps(&inside, &Toolchains::default());
        steps.extend(session_steps("box", network, &files, false));
        let mut made = vec!["/".to_owned()];
        for step in &steps {
            let target = match step {
                RootStep::Dir { target, .. }
                | RootStep::File { target, .. }
                | RootStep::MountPoint { target, .. }
                | RootStep::Link { target, .. } => {
                    made.push(target.clone());
                    target
                }
                RootStep::Bind { target, .. }
                | RootStep::BindOwned { target, .. }
                | RootStep::Tmpfs { target, .. }
                | RootStep::Proc { target }
                | RootStep::Devpts { target } => {
                    assert!(made.contains(target), "{target} is mounted on before it is made");
                    target
                }
                _ => continue,
            };
            let parent = target.rsplit_once('/').map_or("/", |(parent, _)| parent);
            let parent = if parent.is_empty() { "/" } else { parent };
            assert!(made.iter().any(|made| made == parent), "{target} comes before {parent}");
        }
    }
}
