//! Mounting with rclone.

use std::time::Duration;

use super::{HelperRun, MountPaths, MountStep, RequiredTool, ToolCheck, command, context};
use crate::Result;
use crate::mount::RcloneConfig;
use crate::mount::pattern::{RcloneMode, RclonePattern};
use crate::mount::remote::filled;
use crate::posix_path::PosixPath;
use crate::secret::Secret;

/// Where rclone serves NFS unless it is told.
const USUAL_ADDRESS: &str = "127.0.0.1:2049";
const USUAL_PORT: &str = "2049";

pub(super) fn steps(
    place: &MountPaths<'_>,
    pattern: &RclonePattern,
    config: &RcloneConfig,
    text: Secret,
) -> Result<Vec<MountStep>> {
    let folder = PosixPath::new(&format!(".sandbox-rclone-config/{}", place.session));
    let file = folder.join(&PosixPath::new(&format!("{}.conf", config.remote_name)));
    let config_file = place.absolute(&file)?;
    let remote = format!("{}:{}", config.remote_name, config.remote_path);
    let about = || context([("type", &config.mount_type)]);

    let mut steps = vec![MountStep::Require(RequiredTool {
        tool: "rclone",
        check: ToolCheck::Found { program: "rclone", or_at: &["/usr/local/bin/rclone"] },
        context: about(),
    })];
    steps.push(place.make_target());
    steps.extend(place.make_scratch(&folder)?);
    steps.push(MountStep::WritePrivateFile { path: file, content: text });
    if pattern.mode == RcloneMode::Fuse {
        let mut argv = command(["rclone", "mount", &remote, place.path.as_str()]);
        argv.extend(config.read_only.then(|| "--read-only".to_owned()));
        argv.extend(command(["--config", config_file.as_str(), "--daemon"]));
        argv.extend(pattern.extra_args.iter().cloned());
        steps.push(MountStep::Run(HelperRun::new(argv, about())));
        return Ok(steps);
    }

    steps.push(MountStep::Require(RequiredTool {
        tool: "rclone serve nfs",
        check: ToolCheck::Succeeds(&["rclone", "serve", "nfs", "--help"]),
        context: about(),
    }));
    let address = filled(pattern.nfs_addr.as_deref()).unwrap_or(USUAL_ADDRESS);
    let mut argv = command(["rclone", "serve", "nfs", &remote, "--addr", address]);
    argv.extend(command(["--config", config_file.as_str()]));
    argv.extend(config.read_only.then(|| "--read-only".to_owned()));
    argv.extend(pattern.extra_args.iter().cloned());
    let server = HelperRun { in_background: true, ..HelperRun::new(argv, about()) };
    steps.push(MountStep::Run(server));

    let (host, port) = address.rsplit_once(':').unwrap_or((address, USUAL_PORT));
    // What listens everywhere is reached here.
    let host = if matches!(host, "0.0.0.0" | "::") { "127.0.0.1" } else { host };
    let options = match pattern.nfs_mount_options.as_deref() {
        Some(options) if !options.is_empty() => options.join(","),
        _ => format!("vers=4.1,tcp,port={port},soft,timeo=50,retrans=1"),
    };
    let argv = command([
        "mount",
        "-v",
        "-t",
        "nfs",
        "-o",
        &options,
        &format!("{host}:/"),
        place.path.as_str(),
    ]);
    let timeout = Some(Duration::from_secs(10));
    // The server may need a moment before it answers.
    let client = HelperRun { attempts: 3, timeout, ..HelperRun::new(argv, about()) };
    steps.push(MountStep::Run(client));
    Ok(steps)
}
