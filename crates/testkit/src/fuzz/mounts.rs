//! Mounts: what takes credentials out must take out all of them, and whoever plans must not fall.

use bastide_model::lax;
use bastide_model::mount::{
    MountSite, Sanitized, analyze_rclone_args, is_safe_remote_name, sanitize_manifest,
    supplement_rclone_config, url_authority_values, url_holds_authority,
};
use bastide_model::{Manifest, Registry, docker};
use serde_json::Value;
use uuid::Uuid;

use super::seeds::recorded_bytes;
use super::{Target, Verdict, equal};

pub(super) const MANIFEST: Target = Target {
    name: "mounts_json",
    check: |input| {
        let Ok(value) = serde_json::from_slice::<Value>(input) else { return Verdict::Refused };
        if let Ok(manifest) = lax::read::<Manifest>(&value) {
            visit(&manifest);
        }
        let Ok(first) = sanitize_manifest(value, Registry::builtin()) else {
            return Verdict::Refused;
        };
        is_clean(first.value)
    },
    seeds: || {
        let mut seeds = recorded_bytes("mount_security", "manifest");
        seeds.extend(recorded_bytes("mount_commands", "manifest"));
        seeds.extend(recorded_bytes("rclone_config", "manifest"));
        seeds
    },
    words: &[
        "\"mount_strategy\":",
        "\"pattern\":",
        "\"type\":",
        "\"in_container\"",
        "\"docker_volume\"",
        "\"driver_options\":",
        "\"rclone\"",
        "\"mountpoint\"",
        "\"fuse\"",
        "\"s3files\"",
        "\"extra_args\":",
        "\"--config\"",
        "\"config_file_path\":",
        "\"options\":",
        "\"endpoint_url\":",
        "https://u:p@h",
        "\\n",
        "null",
        "{",
        "}",
    ],
};

pub(super) const TEXTS: Target = Target {
    name: "mount_texts",
    check: |input| {
        let Ok(text) = std::str::from_utf8(input) else { return Verdict::Refused };
        if url_authority_values(text).is_empty() == url_holds_authority(text) {
            return Verdict::Broken("an address with credentials has none to hide".to_owned());
        }
        let args = analyze_rclone_args(text.split(' ').map(Some));
        if args.safe && !args.config_files.is_empty() {
            return Verdict::Broken("a configuration file passes for harmless".to_owned());
        }
        if is_safe_remote_name(text) && text.contains([':', ',']) {
            return Verdict::Broken("a configuration passes for a name".to_owned());
        }
        let Ok(longer) = supplement_rclone_config(text, "r", "type = s3", None) else {
            return Verdict::Refused;
        };
        let kept = longer.replacen("type = s3\n", "", 1);
        match kept.replace('\n', "") == text.replace('\n', "") {
            true => Verdict::Accepted,
            false => Verdict::Broken(format!("{text:?} became {longer:?}")),
        }
    },
    seeds: || {
        let mut seeds = recorded_bytes("rclone_config", "config_text");
        seeds.extend(recorded_bytes("rclone_config", "value"));
        seeds.push(b"[r]\n".to_vec());
        seeds
    },
    words: &["[r]", "[", "]", "\n", " ", "http://", "[::1]", "@", "?", "%41", "#", "\u{2028}"],
};

/// Asks everything there is to ask about the mounts of a manifest.
fn visit(manifest: &Manifest) {
    drop(manifest.check_mount_boundaries(Some("docker")));
    drop(docker::requires_fuse(manifest));
    let session_id = Uuid::nil();
    let site = MountSite { manifest, session_id, backend: "docker", has_volumes: true };
    for target in manifest.mount_targets().unwrap_or_default() {
        drop(target.mount.volume_driver());
        drop(target.mount.detaching(site, &target.path));
        let mounting = target.mount.mounting(site, target.path.clone());
        drop(mounting.and_then(|mounting| mounting.plan(Some(b"[r]\n"))));
    }
}

/// What was sanitized holds no credential, and stays as it is when it is sanitized again.
fn is_clean(sanitized: Value) -> Verdict {
    if let Ok(manifest) = lax::read::<Manifest>(&sanitized) {
        for target in manifest.mount_targets().unwrap_or_default() {
            let fields = target.mount.authority_fields();
            if !fields.is_empty() {
                return Verdict::Broken(format!("credentials are left in {fields:?}"));
            }
        }
    }
    match sanitize_manifest(sanitized.clone(), Registry::builtin()) {
        Ok(Sanitized { value, .. }) => equal("manifest", &sanitized, &value),
        Err(error) => Verdict::Broken(format!("what was sanitized is refused: {error}")),
    }
}
