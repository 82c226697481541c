//! Paths, and what they may reach.

use bastide_model::paths::{PathUse, WorkspacePathPolicy};
use bastide_model::{PathGrant, PosixPath};

use super::seeds::recorded_bytes;
use super::{Target, Verdict, equal};

const ROOT: &str = "/workspace";
const GRANT: &str = "/data/shared";

pub(super) const TARGET: Target = Target {
    name: "path_policy",
    check: |input| {
        let Ok(text) = std::str::from_utf8(input) else { return Verdict::Refused };
        let grant = PathGrant {
            path: GRANT.to_owned(),
            read_only: true,
            description: None,
            host_path: None,
        };
        let policy = match WorkspacePathPolicy::new(ROOT, vec![grant]) {
            Ok(policy) => policy,
            Err(error) => return Verdict::Broken(format!("the policy is refused: {error}")),
        };
        if let Ok(written) = policy.normalize_path(text, PathUse::Write)
            && !is_under(&written, ROOT)
        {
            return Verdict::Broken(format!("{written} may be written"));
        }
        let Ok(path) = policy.normalize_path(text, PathUse::Read) else { return Verdict::Refused };
        if !is_under(&path, ROOT) && !is_under(&path, GRANT) {
            return Verdict::Broken(format!("{path} may be read"));
        }
        match policy.normalize_path(&path, PathUse::Read) {
            Ok(again) => equal("path", &path, &again),
            Err(error) => Verdict::Broken(format!("its own answer is refused: {error}")),
        }
    },
    seeds: || {
        let mut seeds = recorded_bytes("paths", "path");
        seeds.extend([&b"/workspace/a"[..], b"/data/shared/x", b"a/../b"].map(<[u8]>::to_vec));
        seeds
    },
    words: &[
        "../",
        "..",
        "./",
        "//",
        "\\",
        "C:",
        "/workspace",
        "/data/shared",
        "/data",
        "\0",
        "~",
        "\u{2215}",
        "%2e",
    ],
};

/// By names alone, without asking the code that is being asked.
fn is_under(path: &PosixPath, root: &str) -> bool {
    let text = path.as_str();
    let inside = text == root || text.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'));
    inside && !text.split('/').any(|name| name == "..")
}
