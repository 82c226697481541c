//! What can be written on the command line.

pub(crate) mod command;
pub(crate) mod docker;
pub(crate) mod kubernetes;
pub(crate) mod lease;
pub(crate) mod mounts;
pub(crate) mod policy;
pub(crate) mod sbx;
pub(crate) mod session;
pub(crate) mod values;

use crate::commands::agent::AgentArgs;
use crate::commands::attach::AttachArgs;
use crate::commands::audit::AuditArgs;
use crate::commands::bisect::BisectArgs;
use crate::commands::checkpoint::CheckpointArgs;
use crate::commands::cp::CpArgs;
use crate::commands::create::CreateArgs;
use crate::commands::diff::DiffArgs;
use crate::commands::docs::{CompletionsArgs, ManArgs};
use crate::commands::doctor::DoctorArgs;
use crate::commands::events::EventsArgs;
use crate::commands::exec::ExecArgs;
use crate::commands::files::FilesArgs;
use crate::commands::fork::ForkArgs;
use crate::commands::init::InitArgs;
use crate::commands::inspect::InspectArgs;
use crate::commands::kill::KillArgs;
use crate::commands::kubernetes::KubernetesTaskArgs;
use crate::commands::lease::LeaseArgs;
use crate::commands::log::LogArgs;
use crate::commands::ls::LsArgs;
use crate::commands::merge::MergeArgs;
use crate::commands::mounts::MountsArgs;
use crate::commands::net::NetArgs;
use crate::commands::port::PortArgs;
use crate::commands::ps::PsArgs;
use crate::commands::redo::RedoArgs;
use crate::commands::restore::RestoreArgs;
use crate::commands::resume::ResumeArgs;
use crate::commands::rm::RmArgs;
use crate::commands::run::RunArgs;
use crate::commands::sbx::SbxTaskArgs;
use crate::commands::shell::ShellArgs;
use crate::commands::snapshot::SnapshotArgs;
use crate::commands::stats::StatsArgs;
use crate::commands::stop::StopArgs;
use crate::commands::sweep::SweepArgs;
use crate::commands::undo::UndoArgs;

/// Give software agents a place to work
#[derive(Debug, clap::Parser)]
#[command(name = "bastide", version, propagate_version = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) task: Task,
}

/// What can be done. The first line about each stands here as well, because only the options of the one that is
/// called are built: building all of them takes as long as starting the program.
#[derive(Debug, clap::Subcommand)]
#[command(defer = true)]
pub(crate) enum Task {
    /// Write a manifest to start from
    Init(InitArgs),
    /// Run a command in a new session, then remove the session
    Run(RunArgs),
    /// Hand a coding agent a folder, and collect what it does
    Agent(AgentArgs),
    /// Make a session that stays until it is removed, and print its id
    Create(CreateArgs),
    /// Run a command in a session
    Exec(ExecArgs),
    /// Open a shell in a session
    Shell(ShellArgs),
    /// List the processes of a session
    Ps(PsArgs),
    /// Listen to a process, and write to it
    Attach(AttachArgs),
    /// Send a signal to a process
    Kill(KillArgs),
    /// Copy files and folders between this machine and sessions
    Cp(CpArgs),
    /// Look at and change the files of a session
    Files(FilesArgs),
    /// List sessions
    Ls(LsArgs),
    /// Show everything that is known about a session
    Inspect(InspectArgs),
    /// Show what happened in a session, also after its end
    Events(EventsArgs),
    /// Check and prove what is on record
    Audit(AuditArgs),
    /// Publish a port of a session on this machine, and print its address
    Port(PortArgs),
    /// List the mounts of a session, and which credentials commands can see
    Mounts(MountsArgs),
    /// Show or change when a running session ends by itself
    Lease(LeaseArgs),
    /// Show what running sessions use: processors, memory, bytes read and written
    Stats(StatsArgs),
    /// Look at the network of a session, and change its policy
    Net(NetArgs),
    /// Save sessions and end everything that runs in them
    Stop(StopArgs),
    /// Go on with a session that was stopped, or that ended
    Resume(ResumeArgs),
    /// Remove sessions, with everything that runs and lies in them
    Rm(RmArgs),
    /// Keep workspaces, and bring them back
    Snapshot(SnapshotArgs),
    /// Make a point of a session's workspace, to come back to
    Checkpoint(CheckpointArgs),
    /// List the points of a session: checkpoints, and with `--journal` every command
    Log(LogArgs),
    /// Show what is different between two points of a session, or between a point and now
    Diff(DiffArgs),
    /// Make the workspace of a session what it was before its last command
    Undo(UndoArgs),
    /// Take the last undo of a session back
    Redo(RedoArgs),
    /// Make a file or folder of a session what it was at a point
    Restore(RestoreArgs),
    /// Make sessions that begin with the files and the environment of another
    Fork(ForkArgs),
    /// Take over what was changed in a fork of a session
    Merge(MergeArgs),
    /// Find the command of a session that broke a test
    Bisect(BisectArgs),
    /// Clear away what was left behind
    Sweep(SweepArgs),
    /// Ask Docker's sbx, and keep secrets for every sandbox of this machine
    Sbx(SbxTaskArgs),
    /// Print what a Kubernetes cluster needs for sessions
    Kubernetes(KubernetesTaskArgs),
    /// Say what this machine can enforce
    Doctor(DoctorArgs),
    /// Print what makes a shell complete our commands
    Completions(CompletionsArgs),
    /// Print the manual page
    Man(ManArgs),
}

/// Whether a command line asks for JSON, as far as can be told from one that does not parse: what
/// follows `--` belongs to somebody else.
pub(crate) fn asks_for_json(args: impl Iterator<Item = std::ffi::OsString>) -> bool {
    args.take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Args;

    #[test]
    fn says_the_same_of_a_command_in_the_list_and_on_its_own_page() {
        let listed = Args::command();
        let mut built = Args::command();
        built.build();
        for own in built.get_subcommands().filter(|own| own.get_name() != "help") {
            let row = listed.find_subcommand(own.get_name()).unwrap();
            let (row, own_line) = (row.get_about().unwrap(), own.get_about().unwrap());
            assert_eq!(row.to_string(), own_line.to_string(), "{}", own.get_name());
        }
    }
}
