//! `bastide cp`, `bastide files` and folders of the host.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::json;

use crate::harness::{Home, text};

#[test]
fn copies_files_and_streams_both_ways() {
    let home = Home::new();
    let id = home.create();
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(3_000_000).collect();
    fs::write(home.path().join("file"), &bytes).unwrap();
    fs::set_permissions(home.path().join("file"), fs::Permissions::from_mode(0o750)).unwrap();
    home.say(&["cp", "file", &format!("{id}:a/copy")]);
    assert_eq!(home.say(&["exec", &id, "--", "stat", "-c", "%a %s", "a/copy"]), "750 3000000\n");
    // Into a folder that exists, under its own name.
    home.say(&["cp", "file", &format!("{id}:a")]);
    home.say(&["exec", &id, "--", "cmp", "a/copy", "a/file"]);
    home.say(&["cp", &format!("{id}:a/copy"), "back"]);
    assert!(fs::read(home.path().join("back")).unwrap() == bytes);
    fs::create_dir(home.path().join("into")).unwrap();
    home.say(&["cp", &format!("{id}:a/copy"), "into"]);
    assert!(fs::read(home.path().join("into/copy")).unwrap() == bytes);

    let output = home.feed(&["cp", "-", &format!("{id}:from-stream")], &bytes);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(home.run(&["cp", &format!("{id}:from-stream"), "-"]).stdout == bytes);
    assert!(home.run(&["files", "cat", &id, "from-stream"]).stdout == bytes);

    let other = home.create();
    home.say(&["cp", &format!("{id}:a/copy"), &format!("{other}:there")]);
    assert!(home.run(&["files", "cat", &other, "there"]).stdout == bytes);
}

#[test]
fn copies_folders_both_ways() {
    let home = Home::new();
    let id = home.create();
    let project = home.path().join("project");
    fs::create_dir_all(project.join("src/deep")).unwrap();
    fs::create_dir(project.join("empty")).unwrap();
    fs::write(project.join("src/deep/main.rs"), "fn main() {}\n").unwrap();
    symlink("src/deep", project.join("link")).unwrap();
    // A link in a session leads into the session.
    symlink("/nowhere", project.join("out")).unwrap();
    let output = home.run(&["cp", "project", &format!("{id}:copy")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    assert_eq!(home.say(&["exec", &id, "--", "readlink", "copy/out"]), "/nowhere\n");
    home.say(&["files", "rm", &id, "copy/out"]);
    let listing =
        home.say(&["exec", &id, "--", "sh", "-c", "cd copy; find . | sort; cat link/main.rs"]);
    let want = ".\n./empty\n./link\n./src\n./src/deep\n./src/deep/main.rs\nfn main() {}\n";
    assert_eq!(listing, want);
    // A folder that exists gets the copy inside; `.` is what is in it.
    home.say(&["cp", "project/src", &format!("{id}:copy")]);
    assert_eq!(home.say(&["files", "cat", &id, "copy/src/deep/main.rs"]), "fn main() {}\n");
    home.say(&["cp", &format!("{id}:copy"), "back"]);
    assert_eq!(
        fs::read_to_string(home.path().join("back/link/main.rs")).unwrap(),
        "fn main() {}\n"
    );
    let copied = home.json(&["cp", "--json", &format!("{id}:copy/."), "back"]);
    assert_eq!(copied["left_out"], json!([]));
    assert!(home.path().join("back/empty").is_dir() && !home.path().join("back/copy").exists());
}

#[test]
fn brings_nothing_out_that_leads_elsewhere() {
    let home = Home::new();
    let id = home.create();
    let line = "mkdir -p d/e; ln -s /etc/passwd d/absolute; ln -s ../../x d/e/up; ln -s ../f d/e/fine
        touch d/f; mkfifo d/pipe; printf x > d/set; chmod 6755 d/set; touch \"$(printf 'd/\\377')\"";
    home.say(&["exec", &id, "--", "sh", "-ec", line]);
    let output = home.run(&["cp", "--json", &format!("{id}:d"), "out"]);
    assert_eq!(output.status.code(), Some(125), "{}", text(&output.stderr));
    let copied: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut left: Vec<_> = copied["left_out"].as_array().unwrap().iter().collect();
    left.sort_by_key(|what| what.to_string());
    assert_eq!(left.len(), 4, "{left:?}");
    let out = home.path().join("out");
    assert_eq!(fs::read_link(out.join("e/fine")).unwrap().to_str(), Some("../f"));
    assert_eq!(fs::metadata(out.join("set")).unwrap().permissions().mode() & 0o7777, 0o755);
    for name in ["absolute", "e/up", "pipe"] {
        assert!(fs::symlink_metadata(out.join(name)).is_err(), "{name}");
    }
    // Links of the host's are not followed beneath the copy either.
    fs::remove_dir_all(out.join("e")).unwrap();
    fs::create_dir(home.path().join("elsewhere")).unwrap();
    symlink("../elsewhere", out.join("e")).unwrap();
    let refused = home.run(&["cp", &format!("{id}:d/."), "out"]);
    assert_eq!(refused.status.code(), Some(125));
    assert_eq!(fs::read_dir(home.path().join("elsewhere")).unwrap().count(), 0);
}

#[test]
fn refuses_copies_that_make_no_sense() {
    let home = Home::new();
    let id = home.create();
    let (inside, missing) = (format!("{id}:file"), format!("{id}:missing"));
    let cases: [&[&str]; 7] = [
        &["cp", "one", "other"],
        &["cp", "-", "-"],
        &["cp", "missing", &inside],
        &["cp", &missing, "here"],
        &["cp", &format!("{id}:/etc/passwd"), "here"],
        &["cp", &format!("{id}:../../etc/passwd"), "here"],
        &["cp", "-", &format!("{id}:.")],
    ];
    for arguments in cases {
        let output = home.feed(arguments, b"x");
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {}", text(&output.stdout));
    }
    assert!(!home.path().join("here").exists());
}

#[test]
fn changes_files_one_by_one() {
    let home = Home::new();
    let id = home.create();
    assert_eq!(home.run(&["files", "mkdir", &id, "a/b"]).status.code(), Some(125));
    home.say(&["files", "mkdir", "-p", &id, "a/b"]);
    let output = home.feed(&["files", "put", &id, "a/file"], b"content\n");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(home.say(&["files", "cat", &id, "a/file"]), "content\n");
    let listed = home.json(&["files", "ls", "--json", &id, "a"]);
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
    assert_eq!(names, [&json!("b"), &json!("file")]);
    assert_eq!((&listed[0]["kind"], &listed[1]["kind"]), (&json!("directory"), &json!("file")));
    assert_eq!(listed[1]["size"], 8);
    let lines = home.say(&["files", "ls", &id, "a"]);
    assert!(lines.lines().nth(1).unwrap().starts_with("file\t0644\t"), "{lines}");
    assert_eq!(home.run(&["files", "rm", &id, "a"]).status.code(), Some(125));
    // For programs.
    let put = home.feed(&["files", "put", "--json", &id, "a/bytes"], b"\xff");
    let reported: serde_json::Value = serde_json::from_slice(&put.stdout).unwrap();
    assert_eq!(reported, json!({"id": id, "path": "a/bytes"}));
    let read = home.json(&["files", "cat", "--json", &id, "a/bytes"]);
    assert_eq!((&read["content_b64"], &read["path"]), (&json!("/w=="), &json!("a/bytes")));
    let read = home.json(&["files", "cat", "--json", &id, "a/file"]);
    assert_eq!((&read["content"], read.get("content_b64")), (&json!("content\n"), None));
    assert_eq!(home.json(&["files", "mkdir", "--json", &id, "a/c"])["path"], "a/c");
    assert_eq!(home.json(&["files", "rm", "--json", &id, "a/c"])["path"], "a/c");
    let refused = home.run(&["files", "rm", "--json", &id, "a/c"]);
    let reported: serde_json::Value = serde_json::from_slice(&refused.stderr).unwrap();
    assert!(reported["error"]["code"].is_string(), "{reported}");
    home.say(&["files", "rm", "-r", &id, "a"]);
    assert_eq!(home.run(&["files", "cat", &id, "a/file"]).status.code(), Some(125));
}

#[test]
fn works_in_a_folder_of_the_host() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    // An ordinary folder of the caller's, which no session may clear or remove.
    let path = folder.path().canonicalize().unwrap();
    let path = path.to_str().unwrap();
    fs::write(folder.path().join("mine"), "mine\n").unwrap();
    let line = "cat mine; echo new > new; pwd";
    let said = home.say(&["run", "--workspace", path, "--", "sh", "-c", line]);
    assert_eq!(said, format!("mine\n{path}\n"));
    assert_eq!(fs::read_to_string(folder.path().join("new")).unwrap(), "new\n");
    let id = home.say(&["create", "--workspace", path]).trim().to_owned();
    assert_eq!(home.json(&["inspect", "--json", &id])["root"], path);
    home.say(&["exec", &id, "--", "rm", "new"]);
    home.say(&["rm", &id]);
    assert_eq!(fs::read_to_string(folder.path().join("mine")).unwrap(), "mine\n");
    assert!(!folder.path().join("new").exists());
    for bad in ["/", "/etc", home.path().to_str().unwrap()] {
        let refused = home.run(&["run", "--workspace", bad, "--", "true"]);
        assert_eq!(refused.status.code(), Some(125), "{bad}");
    }
}

#[test]
fn refuses_to_copy_what_is_neither_file_nor_folder() {
    let home = Home::new();
    let id = home.create();
    home.say(&["exec", &id, "--", "mkfifo", "pipe"]);
    let here = home.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &here, rustix::fs::Mode::RUSR).unwrap();
    let (here, inside) = (here.to_str().unwrap(), format!("{id}:pipe"));
    for (from, to, name) in
        [(here, format!("{id}:x"), here), (&inside, format!("{here}-x"), "pipe")]
    {
        let refused = home.run(&["cp", from, &to]);
        assert_eq!(refused.status.code(), Some(125), "{from}");
        let said = text(&refused.stderr);
        let want = format!("cannot copy {name}: it is neither file nor folder");
        assert!(said.contains(&want), "{said}");
    }
}

#[test]
fn keeps_times_of_what_it_copies() {
    let home = Home::new();
    let id = home.create();
    let folder = home.path().join("dated");
    fs::create_dir_all(folder.join("inner")).unwrap();
    fs::write(folder.join("inner/file"), "x").unwrap();
    symlink("inner/file", folder.join("link")).unwrap();
    let dated = |path: &str, at: &str| {
        let mut touch = std::process::Command::new("touch");
        let status = touch.args(["-h", "-d", at]).arg(folder.join(path)).status().unwrap();
        assert!(status.success(), "{path}");
    };
    for (path, at) in
        [("inner/file", "@1000000000.5"), ("link", "@1100000000"), ("inner", "@1200000000")]
    {
        dated(path, at);
    }
    home.say(&["cp", "dated", &format!("{id}:copy")]);
    let line = "stat -c %.1Y copy/inner/file copy/link copy/inner";
    let want = "1000000000.5\n1100000000.0\n1200000000.0\n";
    assert_eq!(home.say(&["exec", &id, "--", "sh", "-c", line]), want);
    home.say(&["cp", &format!("{id}:copy"), "back"]);
    let mut stat = std::process::Command::new("stat");
    stat.args(["-c", "%.1Y", "back/inner/file", "back/link", "back/inner"])
        .current_dir(home.path());
    assert_eq!(text(&stat.output().unwrap().stdout), want);
}
