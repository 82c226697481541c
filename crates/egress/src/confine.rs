//! What rights the program gives up before it reads the first byte from a sandbox.

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Leaves this thread, and all it will start, with reading these, with files of one folder and with connections outwards.
pub(crate) fn confine(readable: &[&Path], writable: Option<&Path>) -> io::Result<()> {
    // Keys are in memory: not in a core dump, and not for a debugger.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    raise_descriptors();
    rustix::thread::set_no_new_privs(true)?;
    let empty = CapabilitySet::empty();
    let sets = CapabilitySets { effective: empty, permitted: empty, inheritable: empty };
    rustix::thread::clear_ambient_capability_set()?;
    rustix::thread::set_capabilities(None, sets)?;
    restrict(readable, writable).map_err(io::Error::other)
}

/// As many descriptors as the system lets it have: listeners, connections and pipes.
fn raise_descriptors() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // With fewer, connections wait longer.
    let _ = rustix::process::setrlimit(Resource::Nofile, raised);
}

fn restrict(
    readable: &[&Path],
    writable: Option<&Path>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let newest = ABI::V6;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(newest))?
        .handle_access(AccessNet::BindTcp)?
        .scope(Scope::from_all(newest))?
        .create()?;
    for path in readable {
        // What does not exist cannot be read anyway.
        let Ok(opened) = PathFd::new(path) else { continue };
        let access = if path.is_dir() {
            AccessFs::ReadFile | AccessFs::ReadDir
        } else {
            AccessFs::ReadFile.into()
        };
        rules = rules.add_rule(PathBeneath::new(opened, access))?;
    }
    if let Some(folder) = writable {
        // Files, and nothing that is found in one: no folders, links, sockets or devices.
        let access = AccessFs::ReadFile
            | AccessFs::ReadDir
            | AccessFs::WriteFile
            | AccessFs::MakeReg
            | AccessFs::RemoveFile;
        rules = rules.add_rule(PathBeneath::new(PathFd::new(folder)?, access))?;
    }
    let status = rules.restrict_self()?;
    if status.ruleset == RulesetStatus::NotEnforced {
        return Err("this kernel has no Landlock; a program with keys does not run without".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    /// In a thread of its own, whose end is the end of its walls.
    #[test]
    fn leaves_what_it_reads_and_connections_outwards() {
        let folder = tempfile::tempdir().unwrap();
        let packages = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("roots.pem"), "x").unwrap();
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                confine(&[folder.path(), Path::new("/nowhere")], Some(packages.path())).unwrap();
                let (one, two) = (packages.path().join("one"), packages.path().join("two"));
                fs::write(&one, "x").unwrap();
                fs::rename(&one, &two).unwrap();
                assert_eq!(fs::read(&two).unwrap(), b"x");
                assert!(fs::create_dir(&one).is_err());
                assert!(std::os::unix::fs::symlink("/etc", &one).is_err());
                fs::remove_file(&two).unwrap();
                assert_eq!(fs::read(folder.path().join("roots.pem")).unwrap(), b"x");
                assert!(fs::write(folder.path().join("other"), "x").is_err());
                assert!(fs::read("/etc/passwd").is_err());
                assert!(std::process::Command::new("/bin/true").status().is_err());
                assert!(TcpStream::connect(server.local_addr().unwrap()).is_ok());
                assert!(TcpListener::bind("127.0.0.1:0").is_err());
                assert!(UdpSocket::bind("127.0.0.1:0").is_ok());
            });
        });
    }
}
