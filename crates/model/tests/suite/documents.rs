//! Manifests as people write them.

use std::fmt::Write as _;

use bastide_model::document::{Document, Format};
use bastide_model::lax::{self, Dump};
use bastide_model::{ErrorClass, ErrorKind, Manifest, Registry};

const JSON: &str = include_str!("../../../../examples/every-entry.json");
const YAML: &str = include_str!("../../../../examples/every-entry.yaml");
const TOML: &str = include_str!("../../../../examples/every-entry.toml");

#[test]
fn every_format_says_the_same() {
    let json = Manifest::from_json("m.json", JSON).unwrap();
    let yaml = Manifest::from_yaml("m.yaml", YAML).unwrap();
    let toml = Manifest::from_toml("m.toml", TOML).unwrap();
    // Order is part of the model in JSON and YAML; TOML puts tables where they read best.
    assert_eq!(json.value, yaml.value);
    assert_eq!(json.value.dump().unwrap().to_string(), yaml.value.dump().unwrap().to_string());
    assert_eq!(json.value, toml.value);
    assert_eq!(json.value.dump().unwrap(), toml.value.dump().unwrap());
}

#[test]
fn what_is_written_reads_back_the_same() {
    let manifest = Manifest::from_yaml("m.yaml", YAML).unwrap().value;
    let written = manifest.dump().unwrap();
    let again: Manifest = lax::read(&written).unwrap();
    assert_eq!(again, manifest);
    assert_eq!(again.dump().unwrap().to_string(), written.to_string());
    let text = written.to_string();
    assert_eq!(Manifest::from_json("m.json", &text).unwrap().value, manifest);
}

#[test]
fn every_type_of_entry_is_in_the_example() {
    let manifest = Manifest::from_yaml("m.yaml", YAML).unwrap().value;
    let mut seen: Vec<String> = Vec::new();
    for step in manifest.walk().unwrap() {
        seen.push(step.unwrap().1.type_name().to_owned());
    }
    for word in Registry::builtin().entry_types() {
        assert!(seen.iter().any(|seen| seen == word), "no `{word}` in the example");
    }
}

#[test]
fn points_at_what_is_wrong() {
    let cases = [
        (
            "m.yaml",
            "entries:\n  a:\n    type: fiel\n",
            "m.yaml:3:5: entries.a.type: unknown type `fiel`; did you mean `file`?",
        ),
        (
            "m.yaml",
            "entries:\n  a: {type: dir, group: {name: g, users: [{nam: u}]}}\n",
            "m.yaml:2:43: entries.a.group.users.0: `name` is missing\n\
             m.yaml:2:44: entries.a.group.users.0: unknown key `nam`; did you mean `name`?",
        ),
        (
            "m.yaml",
            "entries:\n  d:\n    type: r2_mount\n    bucket: b\n    account_id: a\n    \
             mount_strategy:\n      type: in_container\n      pattern: {type: sshfs}\n",
            "m.yaml:8:17: entries.d.mount_strategy.pattern.type: unknown type `sshfs`; known types \
             are fuse, mountpoint, rclone, s3files",
        ),
        (
            "m.yaml",
            "environment:\n  value:\n    A: 1\n    B: yes\n    C: true\n",
            "m.yaml:3:5: environment.value.A: expected text, found the number 1; put it in quotes\n\
             m.yaml:5:5: environment.value.C: expected text, found `true`; put it in quotes",
        ),
        (
            "m.yaml",
            "enviroment: {}\nroot: [a]\n",
            "m.yaml:1:1: unknown key `enviroment`; did you mean `environment`?\n\
             m.yaml:2:1: root: expected text, found a list",
        ),
        (
            "m.yaml",
            "environment: {PATH: /bin}",
            "m.yaml:1:15: environment: unknown key `PATH`; known keys are value",
        ),
        (
            "m.toml",
            "[entries.a]\ntype = 'file'\n[entries.b]\ntype = 'git_repo'\nref = 1\n",
            "m.toml:1:10: entries.a: `content` is missing\n\
             m.toml:3:10: entries.b: `repo` is missing\n\
             m.toml:5:1: entries.b.ref: expected text, found the number 1; put it in quotes",
        ),
        (
            "m.json",
            "{\n  \"users\": [{\"name\": \"a\"}, {\"nmae\": \"b\"}]\n}",
            "m.json:2:28: users.1: `name` is missing\n\
             m.json:2:29: users.1: unknown key `nmae`; did you mean `name`?",
        ),
        (
            "m.json",
            "{\"entries\": {\"é\": {\"type\": \"dir\", \"children\": {\"/x\": {\"type\": \"dir\"}}}}}",
            "m.json:1:48: entries.\"é\".children.\"/x\": manifest path must be relative: /x",
        ),
        (
            "m.yaml",
            "entries:\n  d:\n    type: s3_mount\n    bucket: b\n    mount_strategy:\n      \
             type: in_container\n      pattern: {type: fuse}\n",
            "m.yaml:2:3: entries.d: invalid mount_pattern type",
        ),
        ("m.yaml", "root: a\nroot: b\n", "m.yaml:2:1: the key `root` is there twice"),
        ("m.json", "{\"root\": 1, \"root\": 2}", "m.json:1:13: the key `root` is there twice"),
        ("m.yaml", "a: &x [*x]\n", "m.yaml:1:8: an alias must not stand inside what it stands for"),
        ("m.yaml", "--- {}\n--- {}\n", "m.yaml:2:1: the file holds more than one document"),
        ("m.yaml", "root: !env HOME\n", "m.yaml:1:7: the tag `!env` means nothing here"),
        ("m.yaml", "version: .inf\n", "m.yaml:1:10: `.inf` is no number that JSON has"),
        ("m.yaml", "- 1\n", "m.yaml:1:1: expected a map, found a list"),
        ("m.json", "{\"a\": }", "m.json:1:7: expected value"),
    ];
    for (name, text, want) in cases {
        let format = Format::of_file(name).unwrap();
        let error = Manifest::load(name, text, format, Registry::builtin()).unwrap_err();
        assert_eq!(error.to_string(), want, "text {text:?}");
    }
}

#[test]
fn lists_places_for_programs() {
    let error = Manifest::from_yaml("m.yaml", "roots: /w\n").unwrap_err();
    assert_eq!(error.class(), Some(ErrorClass::ValidationError));
    let place = &error.context()["errors"][0];
    assert_eq!((&place["line"], &place["column"]), (&1.into(), &1.into()));
    assert_eq!(place["message"], "unknown key `roots`; did you mean `root`?");
}

#[test]
fn knows_what_plain_words_mean_in_yaml() {
    let text =
        "a: [~, true, False, 0o17, 0x1F, 007, -0, 1.50, 1e3, .5, yes, 1_000, 0o8, '1', !!str 1]";
    let document = Document::parse("m.yaml", text, Format::Yaml).unwrap();
    let want = r#"{"a":[null,true,false,15,31,7,0,1.5,1000.0,0.5,"yes","1_000","0o8","1","1"]}"#;
    assert_eq!(document.value().to_string(), want);
}

#[test]
fn keeps_keys_as_they_are_written() {
    let document = Document::parse("m.yaml", "0755: 1\ntrue: 2\n~: 3\n", Format::Yaml).unwrap();
    let keys: Vec<&String> = document.value().as_object().unwrap().keys().collect();
    assert_eq!(keys, ["0755", "true", "~"]);
}

#[test]
fn an_empty_file_is_an_empty_manifest() {
    for (text, format) in [("", Format::Yaml), ("# nothing\n", Format::Yaml), ("", Format::Toml)] {
        let manifest = Manifest::load("m", text, format, Registry::builtin()).unwrap().value;
        assert_eq!(manifest, Manifest::default());
    }
}

#[test]
fn shares_what_an_alias_stands_for() {
    let text = "entries:\n  a: &f {type: file, content: x}\n  b: *f\n";
    let manifest = Manifest::from_yaml("m.yaml", text).unwrap().value;
    assert_eq!(manifest.entries["a"], manifest.entries["b"]);
}

#[test]
fn a_small_file_cannot_grow_large() {
    let mut bomb = String::from("l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..40 {
        let aliases = vec![format!("*l{}", level - 1); 10].join(", ");
        writeln!(bomb, "l{level}: &l{level} [{aliases}]").unwrap();
    }
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 100].join(", "));
    for text in [bomb, long] {
        let error = Document::parse("m.yaml", &text, Format::Yaml).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    }
}

#[test]
fn nothing_is_too_deep_for_an_error() {
    let deep = 100_000;
    let lists = format!("{}{}", "[".repeat(deep), "]".repeat(deep));
    let objects = "{\"a\":".repeat(deep);
    let mut chain = String::from("a0: &a0 []\n");
    for level in 1..2_000 {
        writeln!(chain, "a{level}: &a{level} [[[[*a{}]]]]", level - 1).unwrap();
    }
    let cases = [
        ("m.yaml", lists.clone()),
        ("m.yaml", "- ".repeat(deep)),
        ("m.yaml", chain),
        ("m.json", lists.clone()),
        ("m.json", objects),
        ("m.toml", format!("a = {lists}")),
        ("m.toml", format!("{} = 1", vec!["a"; deep].join("."))),
        ("m.toml", format!("[{}]", vec!["a"; deep].join("."))),
    ];
    for (name, text) in cases {
        let format = Format::of_file(name).unwrap();
        assert!(Document::parse(name, &text, format).is_err(), "{name} {}", &text[..20]);
    }
}

#[test]
fn warnings_say_where() {
    let text = "entries:\n  m:\n    type: r2_mount\n    bucket: b\n    account_id: a\n    \
                permissions: {owner: 6}\n    mount_strategy: {type: docker_volume, driver: rclone}\n";
    let parsed = Manifest::from_yaml("m.yaml", text).unwrap();
    assert!(parsed.warnings[0].message.starts_with("m.yaml:2:3: entries.m: the permissions"));
}
