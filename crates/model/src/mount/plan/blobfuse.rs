//! Mounting with blobfuse2.

use super::{HelperRun, MountPaths, MountStep, RequiredTool, ToolCheck, command, context};
use crate::Result;
use crate::error::raise;
use crate::mount::config::BlobfuseConfig;
use crate::mount::pattern::{BlobfuseCache, FusePattern};
use crate::posix_path::PosixPath;
use crate::secret::Secret;

pub(super) fn steps(
    place: &MountPaths<'_>,
    pattern: &FusePattern,
    config: &BlobfuseConfig,
) -> Result<Vec<MountStep>> {
    let BlobfuseConfig { account, container, .. } = config;
    let session = &place.session;
    let cache = match &pattern.cache_path {
        Some(path) => path.clone(),
        None => {
            PosixPath::typed(&format!(".sandbox-blobfuse-cache/{session}/{account}/{container}"))
        }
    };
    let cache_folder = place.absolute(&cache)?;
    if cache_folder.is_below(&place.target) {
        return Err(raise::mount_config("blobfuse cache_path must be outside the mount path")
            .with_context("mount_path", place.target.as_str())
            .with_context("cache_path", cache_folder.as_str()));
    }
    let folder = PosixPath::new(&format!(".sandbox-blobfuse-config/{session}"));
    let name = format!("{account}_{container}").replace('/', "_");
    let file = folder.join(&PosixPath::new(&format!("{name}.yaml")));
    let file_path = place.absolute(&file)?;

    let mut argv = command(["blobfuse2", "mount"]);
    if config.read_only {
        argv.push("--read-only".to_owned());
    }
    argv.extend(command(["--config-file", file_path.as_str(), place.path.as_str()]));
    let about = || context([("account", account), ("container", container)]);
    let mut run = HelperRun::new(argv, about());
    run.is_protected = true;

    let mut steps = vec![MountStep::Require(RequiredTool {
        tool: "blobfuse2",
        check: ToolCheck::Found { program: "blobfuse2", or_at: &[] },
        context: about(),
    })];
    steps.push(place.make_target());
    steps.extend(place.make_scratch(&cache)?);
    steps.extend(place.make_scratch(&folder)?);
    let content = yaml(pattern, config, &cache_folder);
    steps.push(MountStep::WritePrivateFile { path: file, content });
    steps.push(MountStep::Run(run));
    Ok(steps)
}

/// blobfuse2's configuration.
fn yaml(pattern: &FusePattern, config: &BlobfuseConfig, cache_folder: &PosixPath) -> Secret {
    let filled = |size: Option<i128>| size.filter(|size| *size != 0);
    let usual_size = match pattern.cache_type {
        BlobfuseCache::Block => 50_000,
        BlobfuseCache::File => 4_096,
    };
    let size = filled(pattern.cache_size_mb).unwrap_or(usual_size);
    let mut blocks = Vec::new();
    if pattern.allow_other {
        blocks.push("allow-other: true\n".to_owned());
    }
    blocks
        .push(format!("logging:\n  type: {}\n  level: {}\n", pattern.log_type, pattern.log_level));
    blocks.push(format!(
        "components:\n  - libfuse\n  - {}\n  - attr_cache\n  - azstorage\n",
        pattern.cache_type.as_str()
    ));
    let believed = [
        ("entry-expiration-sec", pattern.entry_cache_timeout_sec),
        ("negative-entry-expiration-sec", pattern.negative_entry_cache_timeout_sec),
    ];
    if believed.iter().any(|(_, seconds)| seconds.is_some()) {
        let mut block = "libfuse:\n".to_owned();
        for (key, seconds) in believed {
            if let Some(seconds) = seconds {
                block.push_str(&format!("  {key}: {seconds}\n"));
            }
        }
        blocks.push(block);
    }
    blocks.push(match pattern.cache_type {
        BlobfuseCache::Block => format!(
            "block_cache:\n  block-size-mb: {}\n  mem-size-mb: {size}\n  path: {cache_folder}\n  \
             disk-size-mb: {size}\n  disk-timeout-sec: {}\n",
            pattern.block_cache_block_size_mb, pattern.block_cache_disk_timeout_sec
        ),
        BlobfuseCache::File => format!(
            "file_cache:\n  path: {cache_folder}\n  timeout-sec: {}\n  max-size-mb: {}\n",
            pattern.file_cache_timeout_sec,
            filled(pattern.file_cache_max_size_mb).unwrap_or(size)
        ),
    });
    blocks.push(format!(
        "attr_cache:\n  timeout-sec: {}\n",
        pattern.attr_cache_timeout_sec.unwrap_or(7200)
    ));
    blocks.push(storage(config));
    Secret::from(blocks.join("\n"))
}

fn storage(config: &BlobfuseConfig) -> String {
    let BlobfuseConfig { account, container, .. } = config;
    let endpoint = match config.endpoint.as_deref() {
        Some(endpoint) if !endpoint.is_empty() => endpoint.to_owned(),
        _ => format!("https://{account}.blob.core.windows.net"),
    };
    let access = match config.account_key.as_deref() {
        Some(key) if !key.is_empty() => format!("  auth-type: key\n  account-key: {key}\n"),
        _ => "  mode: msi\n".to_owned(),
    };
    let identity = match config.identity_client_id.as_deref() {
        Some(identity) if !identity.is_empty() => format!("  identity-client-id: {identity}\n"),
        _ => String::new(),
    };
    format!(
        "azstorage:\n  type: block\n  account-name: {account}\n  container: {container}\n  \
         endpoint: {endpoint}\n{access}{identity}"
    )
}
