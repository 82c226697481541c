//! What this program takes from itself before it listens to a store that nobody trusts.

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Leaves this thread, and all it will start, with these folders, these ports and nothing else.
pub(crate) fn confine(folders: &[&Path], ports: &[u16]) -> io::Result<()> {
    // Keys are in memory: not in a core dump, and not for a debugger.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    rustix::thread::set_no_new_privs(true)?;
    drop_capabilities()?;
    restrict(folders, ports).map_err(io::Error::other)
}

fn drop_capabilities() -> io::Result<()> {
    let empty = CapabilitySet::empty();
    let sets = CapabilitySets { effective: empty, permitted: empty, inheritable: empty };
    rustix::thread::clear_ambient_capability_set()?;
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

fn restrict(
    folders: &[&Path],
    ports: &[u16],
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let newest = ABI::V6;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(newest))?
        .handle_access(AccessNet::from_all(newest))?
        .scope(Scope::from_all(newest))?
        .create()?;
    let wanted = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::Refer;
    for folder in folders {
        rules = rules.add_rule(PathBeneath::new(PathFd::new(folder)?, wanted))?;
    }
    for port in ports {
        rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
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
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// In a thread of its own, whose end is the end of its walls.
    #[test]
    fn leaves_its_folders_and_its_ports_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        let (allowed, other) =
            (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let inside = folder.path().to_owned();
        let outside = outside.path();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let port = allowed.local_addr().unwrap().port();
                confine(&[&inside], &[port]).unwrap();
                fs::write(inside.join("file"), "x").unwrap();
                fs::rename(inside.join("file"), inside.join("other")).unwrap();
                assert_eq!(fs::read(inside.join("other")).unwrap(), b"x");
                for refused in [fs::read("/etc/passwd").is_err(), fs::write(outside, "x").is_err()]
                {
                    assert!(refused);
                }
                assert!(std::process::Command::new("/bin/true").status().is_err());
                assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
                assert!(TcpStream::connect(other.local_addr().unwrap()).is_err());
                assert!(TcpListener::bind("127.0.0.1:0").is_err());
            });
        });
    }
}
