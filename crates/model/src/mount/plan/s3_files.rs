//! Mounting with the mount helper of Amazon S3 Files.

use super::{HelperRun, MountPaths, MountStep, RequiredTool, ToolCheck, command, context};
use crate::mount::config::S3FilesConfig;
use crate::mount::remote::filled;

pub(super) fn steps(place: &MountPaths<'_>, config: &S3FilesConfig) -> Vec<MountStep> {
    let file_system = &config.file_system_id;
    let device = match filled(config.subpath.as_deref()) {
        Some(folder) => format!("{file_system}:{folder}"),
        None => file_system.clone(),
    };
    let mut options = config.extra_options.clone();
    if config.read_only {
        options.insert("ro".to_owned(), None);
    }
    let own = [
        ("mounttargetip", &config.mount_target_ip),
        ("accesspoint", &config.access_point),
        ("region", &config.region),
    ];
    for (key, value) in own {
        if let Some(value) = filled(value.as_deref()) {
            options.insert(key.to_owned(), Some(value.to_owned()));
        }
    }
    let options: Vec<String> = options
        .into_iter()
        .map(|(key, value)| match value {
            Some(value) => format!("{key}={value}"),
            None => key,
        })
        .collect();

    let mut argv = command(["mount", "-t", "s3files"]);
    if !options.is_empty() {
        argv.extend(command(["-o", &options.join(",")]));
    }
    argv.extend(command([&device, place.path.as_str()]));
    let about = || context([("file_system_id", file_system)]);
    let tool = RequiredTool {
        tool: "mount.s3files",
        check: ToolCheck::Found { program: "mount.s3files", or_at: &[] },
        context: about(),
    };
    vec![
        MountStep::Require(tool),
        place.make_target(),
        MountStep::Run(HelperRun::new(argv, about())),
    ]
}
