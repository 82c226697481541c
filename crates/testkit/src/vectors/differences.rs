//! Where this project does something else than the reference, on purpose.
//!
//! Each difference is a rule over inputs, so that it holds for cases nobody has written yet.
//! `docs/differences.md` explains the same rules to people.

use bastide_model::PosixPath;
use serde_json::Value;

/// One deliberate difference.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// The rule's name, here and in the document.
    pub name: &'static str,
    /// The functions it is about.
    pub functions: &'static [&'static str],
    /// Whether it is about this input.
    pub applies: fn(&Value) -> bool,
    /// Whether an answer is what this project promises instead; errors come as error objects.
    pub holds: fn(&Value) -> bool,
    /// What the reference does.
    pub reference: &'static str,
    /// What this project does.
    pub ours: &'static str,
    /// Why.
    pub why: &'static str,
}

/// Every deliberate difference.
#[must_use]
pub fn differences() -> &'static [Difference] {
    &[
        Difference {
            name: "rm_removes_links",
            functions: &["unix_local_op", "unix_local_op_outcome"],
            applies: |input| input["op"] == "rm" && names_a_link(input),
            holds: |answer| answer["result"].is_null() && answer["tree"].is_array(),
            reference: "follows a link that is to be removed and removes what it points to; the link \
                        stays, or is refused if it leads out",
            ours: "removes the link itself, wherever it leads",
            why: "nobody who removes a link means the file behind it",
        },
        Difference {
            name: "rm_keeps_the_root",
            functions: &["unix_local_op", "unix_local_op_outcome"],
            applies: |input| {
                input["op"] == "rm" && input["args"]["recursive"] == true && is_root(input)
            },
            holds: |answer| {
                let paths = |node: &Value| node["path"].as_str().map(str::to_owned);
                let tree = answer["tree"].as_array().into_iter().flatten();
                let paths: Vec<String> = tree.filter_map(paths).collect();
                let is_empty = |root: &String| {
                    !root.contains('/')
                        && !paths.iter().any(|path| path.starts_with(&format!("{root}/")))
                };
                answer["result"].is_null() && paths.iter().any(is_empty)
            },
            reference: "removes the folder of the workspace or a grant itself",
            ours: "removes everything in it and leaves the folder",
            why: "a session without its root cannot run commands, and a caller's folder stays",
        },
        Difference {
            name: "an_empty_line_does_nothing",
            functions: &["unix_local_exec_live"],
            applies: |input| input["shell"] == true && input["command"][0] == "",
            holds: |answer| answer["exit_code"] == 0 && answer["stderr_b64"] == "",
            reference: "puts `cd … &&` before the line, so that an empty one is a mistake of syntax",
            ours: "starts the shell in the folder; an empty line does nothing",
            why: "the line is the caller's and is run as it is",
        },
        Difference {
            name: "no_command_can_fail",
            functions: &["apply_manifest", "apply_manifest_outcome"],
            applies: |input| {
                let rules = input["exec_rules"].as_array().into_iter().flatten();
                let names = |rule: &Value| rule["match"].as_str().unwrap_or_default().to_owned();
                rules.map(names).any(|name| name.starts_with("chmod") || name == "groupadd")
            },
            holds: |answer| answer["tree"].is_object() && answer["result"] != "error",
            reference: "runs `chmod`, `groupadd` and the like inside, and fails where they do",
            ours: "the guest sets permissions and makes accounts itself; there is no command to fail",
            why: "works in images that have no such programs, and making accounts twice is fine",
        },
        Difference {
            name: "empty_folders_survive",
            functions: &["apply_manifest", "apply_manifest_outcome"],
            applies: |input| {
                let mut entries = input["manifest"]["entries"].as_object().into_iter().flatten();
                let mut nodes = input["tree"].as_array().into_iter().flatten();
                entries.any(|(_, entry)| entry["type"] == "local_dir")
                    && nodes.any(|node| node["type"] == "dir" && node["path"] != input["base_dir"])
            },
            holds: |answer| {
                let mut nodes = answer["tree"].as_object().into_iter().flatten();
                nodes.any(|(path, node)| path.ends_with("/empty") && node["type"] == "dir")
            },
            reference: "leaves out empty folders of a folder of the host, and the modes of its files",
            ours: "copies both",
            why: "a copy is the folder, not only its files",
        },
        Difference {
            name: "what_was_saved_comes_back",
            functions: &["unix_local_snapshot_roundtrip"],
            applies: |input| {
                let mut nodes = input["changes"].as_array().into_iter().flatten();
                let leads_out = |node: &Value| {
                    node["target"].as_str().is_some_and(|target| target.starts_with('/'))
                };
                nodes.any(leads_out)
            },
            holds: |answer| answer["after_resume"].is_array(),
            reference: "saves a link with an absolute target and cannot restore the snapshot",
            ours: "restores what it saved",
            why: "every Python environment has such links, and a link is only text",
        },
        Difference {
            name: "nothing_mounts_inside_a_local_sandbox",
            functions: &["apply_manifest", "apply_manifest_outcome"],
            applies: |input| {
                let text = input["manifest"].to_string();
                text.contains("_mount\"")
            },
            holds: |answer| answer["message"].as_str().is_some_and(|text| text.contains("_mount`")),
            reference: "runs the program that mounts on the host, with the caller's rights",
            ours: "refuses it by name, before anything is laid out, and names the strategy `host`",
            why: "nobody inside a local sandbox may mount, and keys stay outside",
        },
        Difference {
            name: "the_host_can_mount",
            functions: &["mount_strategy_parse"],
            applies: |input| {
                let word = input["strategy"]["type"].as_str();
                word.is_some_and(|word| !["in_container", "docker_volume", "host"].contains(&word))
            },
            holds: |answer| {
                let message = answer["message"].as_str();
                message.is_some_and(|text| text.contains("docker_volume, host, in_container"))
            },
            reference: "knows the strategies `docker_volume` and `in_container`",
            ours: "knows `host`, too, and lists it",
            why: "keys that never enter the sandbox",
        },
        Difference {
            name: "native_gcs_volumes_work",
            functions: &[
                "docker_volume_driver_config",
                "docker_volume_mounts",
                "docker_container_mounts",
            ],
            applies: |input| {
                let text = input.to_string();
                text.contains("\"gcs_mount\"")
                    && text.contains("\"driver\":\"rclone\"")
                    && !text.contains("\"access_id\":\"")
            },
            holds: |answer| answer.to_string().contains("\"gcs\""),
            reference: "tells rclone's plugin `type=google cloud storage`, and it refuses the options",
            ours: "tells it `type=gcs`",
            why: "it is the only spelling whose options the real plugin takes",
        },
    ]
}

/// The place an operation of a local session is about, from the workspace on.
fn place(input: &Value) -> PosixPath {
    let path = input["args"]["path"].as_str().unwrap_or_default();
    let below = path.strip_prefix("<TMP>/ws").map(|path| path.trim_start_matches('/'));
    PosixPath::new(below.unwrap_or(path)).normalized()
}

fn is_root(input: &Value) -> bool {
    let mut grants = input["grants"].as_array().into_iter().flatten();
    let is_it =
        |grant: &Value| grant["path"] == input["args"]["path"] && grant["read_only"] != true;
    place(input).is_empty() || grants.any(is_it)
}

fn names_a_link(input: &Value) -> bool {
    let path = input["args"]["path"].as_str().unwrap_or_default();
    let place = match path.strip_prefix("<TMP>/") {
        Some(below) => PosixPath::new(below).normalized().to_string(),
        None => format!("ws/{}", place(input)),
    };
    let tree = input["tree"].as_array();
    let is_it = |node: &Value| node["type"] == "symlink" && node["path"] == place.as_str();
    tree.is_some_and(|tree| tree.iter().any(is_it))
}

/// The rule about a case, where there is one.
pub(crate) fn matching(function: &str, input: &Value) -> Option<&'static Difference> {
    let mut rules = differences().iter();
    rules.find(|rule| rule.functions.contains(&function) && (rule.applies)(input))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_names_every_rule() {
        let document = include_str!("../../../../docs/differences.md");
        for rule in differences() {
            assert!(document.contains(&format!("`{}`", rule.name)), "{} is missing", rule.name);
        }
    }
}
