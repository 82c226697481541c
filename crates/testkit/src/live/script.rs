//! Scripts of calls that a seed makes: the same for the same seed, and calls nobody thought of beside each other.

use serde_json::{Map, Value, json};

use super::LiveBackend;
use super::scenario::Scenario;

/// How many scripts a seed makes.
const SCRIPTS: usize = 30;

/// How many calls a script makes.
const CALLS: usize = 14;

/// Names that only ever are files.
const FILES: [&str; 6] = ["a", "b", "d/a", "d/e/b", "\u{e9}", "x y"];

/// Names that only ever are folders.
const FOLDERS: [&str; 5] = ["d", "d/e", "m", "m/n/o", "-rf"];

/// Names that only ever are links. They are never removed: there the sides differ, and are meant to.
const LINKS: [&str; 3] = ["l", "k", "d/l"];

/// Where links lead; never to one another, because the reference's own error for a circle is Python's.
const TARGETS: [&str; 8] = ["a", "b", "d", "nope", "..", "/etc/hostname", "m", "d/e"];

/// Paths that are none of these.
const ODD: [&str; 10] = [
    "../x",
    "/etc/hostname",
    "nope/deep",
    "a/",
    "d//a",
    "<ROOT>/a",
    "./d/../b",
    "a/below",
    "//etc/hostname",
    "d/./e/b",
];

/// The one of them that makes a folder of a name for files. `write` over a folder is an error here; the reference's client
/// for containers has `cp` put the content into it, under a name by chance.
const FOLDER_OF_A_FILE: &str = "a/below";

/// Lines for the shell.
const LINES: [&str; 9] = [
    "find . -mindepth 1 -printf '%p %m %y %l\\n' | LC_ALL=C sort",
    "cat a b 2>/dev/null",
    "mkdir -p d/e m && printf inner > d/a",
    "printf one > a; ln -f a b",
    "chmod 640 a; chmod 711 d",
    "rm -rf d; exit 3",
    "test -e a && echo there >&2",
    "mkfifo p; printf x > 'x y'",
    "find . -type f -exec sha256sum {} + | LC_ALL=C sort",
];

/// Numbers by chance, from a seed.
#[derive(Debug)]
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        // SplitMix64: any seed will do, zero too.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        let limit = limit.max(1) as u64;
        usize::try_from(self.next() % limit).unwrap_or(0)
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of.get(self.below(of.len())).copied().unwrap_or_default()
    }

    fn path(&mut self, pools: &[&[&'static str]]) -> &'static str {
        let pool = pools.get(self.below(pools.len())).copied().unwrap_or_default();
        self.one(pool)
    }

    /// A path that is written to.
    fn target(&mut self, side: &LiveBackend) -> &'static str {
        let pools: [&[&str]; 2] = [&FILES, &ODD];
        match self.path(&pools) {
            FOLDER_OF_A_FILE if *side != LiveBackend::Local => FILES[0],
            path => path,
        }
    }
}

/// The scripts of a seed.
pub(super) fn scripts(seed: u64, side: &LiveBackend) -> Vec<Scenario> {
    let mut chance = Rng(seed);
    (0..SCRIPTS)
        .map(|number| {
            let steps: Vec<Value> = (0..CALLS).map(|_| call(&mut chance, side)).collect();
            let id = format!("seed-{seed}/{number:02}");
            Scenario::made(id, Map::from_iter([("steps".to_owned(), steps.into())]))
        })
        .collect()
}

fn call(chance: &mut Rng, side: &LiveBackend) -> Value {
    // Containers of the reference answer as the image's `mkdir`, `rm` and `mv` do.
    let kinds = if *side == LiveBackend::Local { 15 } else { 9 };
    let any: [&[&str]; 4] = [&FILES, &FOLDERS, &LINKS, &ODD];
    let unlinked: [&[&str]; 3] = [&FILES, &FOLDERS, &ODD];
    match chance.below(kinds) {
        0 => json!({"op": "exec", "command": [chance.one(&LINES)]}),
        1 => {
            let (to, name) = (chance.one(&TARGETS), chance.one(&LINKS));
            json!({"op": "exec", "command": [format!("ln -sfn {to} {name}")]})
        }
        2 => json!({"op": "read", "path": chance.path(&any)}),
        3 | 4 => {
            let times = chance.below(4);
            json!({"op": "write", "path": chance.target(side), "content": "text\n", "times": times})
        }
        5 => {
            json!({"op": "read_bounded", "path": chance.path(&any), "max_bytes": 1 + chance.below(6)})
        }
        6 => json!({"op": "persist", "as": "x"}),
        7 => json!({"op": "running"}),
        8 => json!({"op": "apply_patch", "patch": patch(chance, side)}),
        9 => json!({"op": "ls", "path": chance.path(&any)}),
        10 => {
            let parents = chance.below(2) == 0;
            let pools: [&[&str]; 2] = [&FOLDERS, &ODD];
            json!({"op": "mkdir", "path": chance.path(&pools), "parents": parents})
        }
        11 => {
            let recursive = chance.below(2) == 0;
            json!({"op": "rm", "path": chance.path(&unlinked), "recursive": recursive})
        }
        12 => {
            let (source, destination) = match chance.below(3) {
                0 => (chance.one(&LINKS), chance.one(&LINKS)),
                _ => (chance.path(&unlinked), chance.one(&FILES)),
            };
            json!({"op": "mv", "source": source, "destination": destination})
        }
        13 => {
            let (left, right) = (chance.path(&any), chance.path(&any));
            json!({"op": "same_file", "left": left, "right": right, "follow": chance.below(2) == 0})
        }
        _ => json!({"op": "hydrate", "from": "x"}),
    }
}

fn patch(chance: &mut Rng, side: &LiveBackend) -> String {
    let name = chance.target(side);
    let body = match chance.below(4) {
        // A new file replaces nothing here; in containers of the reference it does.
        0 if *side != LiveBackend::Local => {
            let number = chance.next();
            format!("*** Add File: d/new-{number}\n+text")
        }
        0 => format!("*** Add File: {name}\n+text"),
        1 => format!("*** Delete File: {name}"),
        2 => {
            let to = chance.one(&FILES);
            format!("*** Update File: {name}\n*** Move to: {to}\n@@\n-text\n+other")
        }
        _ => format!("*** Update File: {name}\n@@\n-text\n+other"),
    };
    format!("*** Begin Patch\n{body}\n*** End Patch")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn makes_the_same_scripts_of_the_same_seed() {
        let lines = |seed| {
            let scripts = scripts(seed, &LiveBackend::Local);
            let tmp = std::path::Path::new("/tmp/x");
            scripts.iter().map(|script| script.line(&LiveBackend::Local, tmp)).collect::<Vec<_>>()
        };
        assert_eq!(lines(7), lines(7));
        assert_ne!(lines(7), lines(8));
        assert_eq!(lines(0).len(), SCRIPTS);
    }

    #[test]
    fn leaves_out_of_containers_what_is_meant_to_differ_there() {
        let side = LiveBackend::Docker { host: String::new(), image: String::new() };
        let mut added = BTreeSet::new();
        for script in (0..20).flat_map(|seed| scripts(seed, &side)) {
            let line = script.line(&side, std::path::Path::new("/tmp/x"));
            for step in line["steps"].as_array().unwrap() {
                let patch = step["patch"].as_str().unwrap_or_default();
                assert!(step["op"] != "write" || step["path"] != FOLDER_OF_A_FILE);
                assert!(!patch.contains(FOLDER_OF_A_FILE));
                let name = patch.lines().find_map(|line| line.strip_prefix("*** Add File: "));
                assert!(name.is_none_or(|name| added.insert(name.to_owned())), "{patch}");
            }
        }
        assert!(added.len() > 50);
    }
}
