//! Patches, as models send them.

use bastide_model::patch::{
    DiffMode, PatchOperation, apply_diff, coerce_operations, parse_tool_input,
};
use serde_json::{Value, json};

use super::seeds::recorded_bytes;
use super::{Target, Verdict, equal};

/// The file that is patched, a NUL, and the patch.
pub(super) const TARGET: Target = Target {
    name: "patch",
    check: |input| {
        let Ok(text) = std::str::from_utf8(input) else { return Verdict::Refused };
        let (file, patch) = text.split_once('\0').unwrap_or(("one\ntwo\nthree\n", text));
        for mode in [DiffMode::Update, DiffMode::Create] {
            if let Ok(patched) = apply_diff(file, patch, mode)
                // Twice, because line ends may become longer.
                && patched.len() > 2 * (file.len() + patch.len()) + 2
            {
                return Verdict::Broken("the result is longer than everything together".to_owned());
            }
        }
        let Ok(operations) = parse_tool_input(patch) else { return Verdict::Refused };
        for operation in &operations {
            if let Some(diff) = &operation.diff {
                // Whether it fits is another matter; it must not fall.
                drop(apply_diff(file, diff, DiffMode::Update));
            }
        }
        let written: Value = operations.iter().map(operation_json).collect();
        match coerce_operations(&written) {
            Ok(again) => equal("operations", &operations, &again),
            Err(error) => Verdict::Broken(format!("its own operations are refused: {error}")),
        }
    },
    seeds: || {
        let patches = recorded_bytes("apply_patch", "raw_input");
        let diffs = recorded_bytes("apply_patch", "diff");
        let files = recorded_bytes("apply_patch", "input");
        let pairs = files.iter().zip(&diffs).map(|(file, diff)| [file.as_slice(), diff].join(&0));
        pairs.chain(patches).collect()
    },
    words: &[
        "*** Begin Patch\n",
        "*** End Patch",
        "*** Add File: ",
        "*** Update File: ",
        "*** Delete File: ",
        "*** Move to: ",
        "*** End of File\n",
        "@@",
        "@@ ",
        "\n+",
        "\n-",
        "\n ",
        "\r\n",
        "\u{2028}",
        "\0",
        "one\n",
        "{\"operations\":[",
        "\"type\":\"update_file\"",
        "\"diff\":",
        "../",
    ],
};

fn operation_json(operation: &PatchOperation) -> Value {
    json!({
        "type": operation.kind.as_str(),
        "path": operation.path,
        "diff": operation.diff,
        "move_to": operation.move_to,
    })
}
