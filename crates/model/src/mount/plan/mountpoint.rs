//! Mounting with Mountpoint for Amazon S3.

use super::{HelperRun, MountPaths, MountStep, RequiredTool, ToolCheck, command, context};
use crate::Result;
use crate::error::raise;
use crate::mount::config::MountpointConfig;
use crate::mount::inline_url::url_holds_authority;
use crate::mount::remote::filled;
use crate::secret::Secret;

pub(super) fn steps(place: &MountPaths<'_>, config: &MountpointConfig) -> Result<Vec<MountStep>> {
    let endpoint = filled(config.endpoint_url.as_deref());
    if endpoint.is_some_and(url_holds_authority) {
        // Arguments can be read by everybody in the sandbox.
        let message = "the endpoint of a mount must not hold credentials";
        return Err(raise::mount_config(message).with_safe_message().with_protection());
    }
    let id = filled(config.access_key_id.as_deref());
    let key = id.zip(filled(config.secret_access_key.as_deref()));

    let mut argv = command(["mount-s3"]);
    if key.is_none() {
        argv.extend(command(["--no-sign-request"]));
    }
    if config.read_only {
        argv.extend(command(["--read-only"]));
    } else {
        argv.extend(command(["--allow-overwrite", "--allow-delete"]));
    }
    if let Some(region) = filled(config.region.as_deref()) {
        argv.extend(command(["--region", region]));
    }
    if let Some(endpoint) = endpoint {
        argv.extend(command(["--endpoint-url", endpoint]));
    }
    if config.mount_type == "gcs_mount" {
        // Google's service refuses the checksums that are sent otherwise.
        argv.extend(command(["--upload-checksums", "off"]));
    }
    if let Some(prefix) = filled(config.prefix.as_deref()) {
        argv.extend(command(["--prefix", prefix]));
    }
    argv.extend(command([&config.bucket, place.path.as_str()]));

    let about = || context([("bucket", &config.bucket)]);
    let mut run = HelperRun::new(argv, about());
    run.is_protected = true;
    if let Some((id, key)) = key {
        run.env.push(("AWS_ACCESS_KEY_ID", Secret::from(id)));
        run.env.push(("AWS_SECRET_ACCESS_KEY", Secret::from(key)));
        let token = filled(config.session_token.as_deref());
        run.env.extend(token.map(|token| ("AWS_SESSION_TOKEN", Secret::from(token))));
    }
    let tool = RequiredTool {
        tool: "mount-s3",
        check: ToolCheck::Found { program: "mount-s3", or_at: &[] },
        context: about(),
    };
    Ok(vec![MountStep::Require(tool), place.make_target(), MountStep::Run(run)])
}
