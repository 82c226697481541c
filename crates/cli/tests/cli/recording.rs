//! The pictures of the README: `docs/session.svg` and `docs/bisect.svg`, drawn from what the tool really says.
//! `BASTIDE_TEST_UPDATE=1` draws it anew.

use std::fs;
use std::process::Command;

use crate::harness::{Home, text};

/// A picture.
struct Picture {
    /// Its file among the documents.
    name: &'static str,
    /// What it shows, for those who cannot see it.
    about: &'static str,
    /// What is typed.
    typed: &'static [&'static str],
}

const SESSION: Picture = Picture {
    name: "session.svg",
    about: "A terminal: a session is made, a key cannot be read, and a removed file comes back",
    typed: SESSION_TYPED,
};

const BISECT: Picture = Picture {
    name: "bisect.svg",
    about: "A terminal: of four commands, bisect names the one that broke a test, and an undo takes it back",
    typed: &[
        "bastide create --name demo --journal",
        "bastide exec demo -- sh -c 'echo \"price: 42\" > config'",
        "bastide exec demo -- sh -c 'seq 1000 > data'",
        "bastide exec demo -- sed -i s/42/24/ config",
        "bastide exec demo -- sh -c 'echo done > report'",
        "bastide bisect demo -- sh -c '! grep -q 24 config'",
        "bastide diff demo 2..3",
        "bastide undo demo -n 2",
        "bastide rm demo",
    ],
};

const SESSION_TYPED: &[&str] = &[
    "bastide create --name demo --journal",
    "bastide exec demo -- sh -c 'echo \"a day of work\" > notes.txt; ls'",
    "head -n 1 ~/.ssh/id_ed25519",
    "bastide exec demo -- cat ~/.ssh/id_ed25519",
    "bastide exec demo -- rm notes.txt",
    "bastide undo demo",
    "bastide exec demo -- cat notes.txt",
    "bastide rm demo",
];

const LINE: usize = 21;
const LEFT: usize = 18;
const TOP: usize = 52;

struct Line {
    text: String,
    is_typed: bool,
    /// When it appears, in tenths of a second.
    at: usize,
}

#[test]
fn the_picture_shows_what_happens() {
    let home = Home::new();
    let keys = home.path().join(".ssh");
    fs::create_dir(&keys).unwrap();
    fs::write(keys.join("id_ed25519"), "-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n").unwrap();
    let lines = record(&home, &SESSION);
    assert!(lines.iter().any(|line| line.text.contains("No such file")), "the key was read");
    compare(&SESSION, &lines);
}

#[test]
fn the_picture_of_bisect_shows_what_happens() {
    let lines = record(&Home::new(), &BISECT);
    let found = "3\t0\tsed -i s/42/24/ config";
    assert!(lines.iter().any(|line| line.text == found), "the command is named");
    compare(&BISECT, &lines);
}

/// What the tool says to all that is typed.
fn record(home: &Home, picture: &Picture) -> Vec<Line> {
    let (mut lines, mut at) = (Vec::new(), 5);
    for typed in picture.typed {
        lines.push(Line { text: format!("$ {typed}"), is_typed: true, at });
        at += 9;
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("exec 2>&1\nbastide() {{ \"$TOOL\" \"$@\"; }}\n{typed}"));
        let mut shell = home.wrapped(shell, &[]);
        shell.env("TOOL", env!("CARGO_BIN_EXE_bastide")).env("HOME", home.path());
        let output = shell.output().unwrap();
        let said = text(&output.stdout);
        for line in said.lines() {
            let line = line.replace(&home.path().display().to_string(), "/home/you");
            // The id of a session is another one every time.
            let is_id = line.len() == 32 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
            let text = if is_id { "5e0c6d6ad0f84a7bb4e5dbb1d7c1b8a5".to_owned() } else { line };
            lines.push(Line { text, is_typed: false, at });
        }
        at += 9;
    }
    lines
}

/// Compares a picture with the one that is held.
fn compare(picture: &Picture, lines: &[Line]) {
    let drawn = draw(picture.about, lines);
    let place = format!("{}/../../docs/{}", env!("CARGO_MANIFEST_DIR"), picture.name);
    if std::env::var_os("BASTIDE_TEST_UPDATE").is_some() {
        fs::write(&place, &drawn).unwrap();
    }
    let held = fs::read_to_string(&place).unwrap_or_default();
    let differs = held.lines().zip(drawn.lines()).find(|(held, drawn)| held != drawn);
    assert!(held == drawn, "docs/{} is not what happens: {differs:?}", picture.name);
}

fn draw(about: &str, lines: &[Line]) -> String {
    let height = TOP + lines.len() * LINE + 14;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 980 {height}\" width=\"980\" height=\"{height}\" role=\"img\" \
         aria-label=\"{about}\">\n\
         <style>\n\
         text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #c9d1d9; white-space: pre; }}\n\
         .typed {{ fill: #7ee787; }}\n\
         .line {{ opacity: 0; animation: shown 0.2s forwards; }}\n\
         @keyframes shown {{ to {{ opacity: 1; }} }}\n\
         @media (prefers-reduced-motion: reduce) {{ .line {{ opacity: 1; animation: none; }} }}\n\
         </style>\n\
         <rect width=\"980\" height=\"{height}\" rx=\"10\" fill=\"#0d1117\"/>\n"
    );
    for (number, color) in ["#ff5f57", "#febc2e", "#28c840"].iter().enumerate() {
        let x = 22 + number * 20;
        svg.push_str(&format!("<circle cx=\"{x}\" cy=\"20\" r=\"6\" fill=\"{color}\"/>\n"));
    }
    for (number, line) in lines.iter().enumerate() {
        let y = TOP + number * LINE;
        let class = if line.is_typed { "line typed" } else { "line" };
        let (seconds, tenths) = (line.at / 10, line.at % 10);
        svg.push_str(&format!(
            "<text class=\"{class}\" style=\"animation-delay: {seconds}.{tenths}s\" x=\"{LEFT}\" y=\"{y}\">{}</text>\n",
            escaped(&line.text)
        ));
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    // The picture has no stops for tabs.
    text.replace('\t', "    ").replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
