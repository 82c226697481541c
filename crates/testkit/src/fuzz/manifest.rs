//! Manifests, from programs and from people.

use bastide_model::document::{Document, Format};
use bastide_model::lax::{self, Dump as _};
use bastide_model::{Manifest, Registry};
use serde_json::Value;

use super::seeds::recorded_bytes;
use super::{Target, Verdict, equal};

pub(super) const JSON: Target = Target {
    name: "manifest_json",
    check: |input| {
        let Ok(value) = serde_json::from_slice::<Value>(input) else { return Verdict::Refused };
        lax::read::<Manifest>(&value).map_or(Verdict::Refused, |manifest| survives(&manifest))
    },
    seeds: || recorded_bytes("manifest_validate", "manifest"),
    words: WORDS,
};

pub(super) const DOCUMENT: Target = Target {
    name: "manifest_document",
    check: |input| {
        let Some((format, text)) = document(input) else { return Verdict::Refused };
        let Ok(document) = Document::parse("fuzzed", text, format) else {
            return Verdict::Refused;
        };
        let manifest = document.read::<Manifest>(Registry::builtin());
        manifest.map_or(Verdict::Refused, |parsed| survives(&parsed.value))
    },
    seeds: || {
        // JSON is YAML, too; hand-written documents show what only people write.
        let json = recorded_bytes("manifest_validate", "manifest");
        let written = [&b"yroot: /work\nentries:\n  a: &x {type: file, content: hi}\n  b: *x\n"[..],
            b"y# town\nentries:\n  notes.txt:\n    type: file\n    content: |\n      one\n      two\n",
            b"troot = \"/work\"\n[entries.\"a.txt\"]\ntype = \"file\"\ncontent = \"\"\"x\"\"\"\n"];
        let tagged =
            json.iter().flat_map(|json| ["j", "y"].map(|tag| [tag.as_bytes(), json].concat()));
        tagged.chain(written.iter().map(|seed| seed.to_vec())).collect()
    },
    words: WORDS,
};

const WORDS: &[&str] = &[
    "\"type\":",
    "\"file\"",
    "\"dir\"",
    "\"children\":",
    "\"entries\":",
    "\"content\":",
    "\"git_repo\"",
    "\"s3_mount\"",
    "\"mount_strategy\":",
    "\"in_container\"",
    "\"environment\":",
    "\"value\":",
    "\"permissions\":",
    "\"users\":",
    "\"groups\":",
    "\"root\":",
    "\"extra_path_grants\":",
    "null",
    "true",
    "{",
    "}",
    "[",
    "]",
    "../",
    "/workspace",
    "\\u0000",
    "\\ud83d\\ude00",
    "- ",
    ": ",
    "&a ",
    "*a",
    "<<: ",
    "|\n",
];

/// The first byte says which format the rest is.
fn document(input: &[u8]) -> Option<(Format, &str)> {
    let (tag, text) = input.split_first()?;
    let format = match tag {
        b'j' => Format::Json,
        b'y' => Format::Yaml,
        b't' => Format::Toml,
        _ => return None,
    };
    Some((format, std::str::from_utf8(text).ok()?))
}

/// What was read is written, read again, and still the same; and nobody who walks it falls.
fn survives(manifest: &Manifest) -> Verdict {
    let described = manifest.describe(None);
    let walked = manifest.validated_entries();
    if described.is_ok() != walked.is_ok() && walked.is_ok() {
        return Verdict::Broken("its entries are valid but cannot be described".to_owned());
    }
    // Content that is not text has no JSON.
    let Ok(written) = manifest.dump() else { return Verdict::Accepted };
    let again = match lax::read::<Manifest>(&written) {
        Ok(again) => again,
        Err(error) => return Verdict::Broken(format!("what it wrote is refused: {error}")),
    };
    match again.dump() {
        Ok(rewritten) => equal("manifest", &written.to_string(), &rewritten.to_string()),
        Err(error) => Verdict::Broken(format!("it cannot be written twice: {error}")),
    }
}
