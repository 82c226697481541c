//! Runs of agents that are interrupted, killed, or side by side.

use std::fs;

use serde_json::Value;

use crate::agent::{Setting, git};
use crate::harness::{count, end, kill, pass, text, until};

#[test]
fn an_interrupted_agent_ends_and_its_change_is_collected() {
    let scene = Setting::new();
    let line = "echo begun > begun; sleep 7701@";
    let arguments = scene.arguments(&["--json", "--mode", "worktree", "--branch", "b"], line);
    let child = scene.home.command(&arguments).spawn().unwrap();
    until("it runs", || crate::harness::is_running("sleep 7701@"));
    kill(i32::try_from(child.id()).unwrap(), "TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["reason"], "cancelled");
    assert_eq!(report["changed_files"][0]["path"], "begun");
    assert_eq!(git(&scene.work, &["show", "b:begun"]), "begun");
    scene.assert_clean();
}

#[test]
fn the_best_of_several_is_named_and_passed_its_check() {
    let scene = Setting::new();
    let line = "head -c 1 /dev/urandom | od -An -tu1 > number; cat number number number > more";
    let check = "test $(($(cat number) % 2)) = 0";
    let options = ["--best-of", "3", "--check", check, "--branch", "try", "--json"];
    let output = scene.run(&options, line);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    let passed: Vec<_> = runs.iter().filter(|run| run["check"]["exit_code"] == 0).collect();
    let is_kept = |run: &&Value| run["name"] == report["keep"];
    assert_eq!(passed.iter().any(is_kept), !passed.is_empty(), "{report}");
    assert_eq!(output.status.code(), Some(i32::from(passed.is_empty())));
    for (at, run) in runs.iter().enumerate() {
        let name = format!("try-{}", at + 1);
        assert_eq!((&run["name"], &run["branch"]), (&name.clone().into(), &name.clone().into()));
        let number = git(&scene.work, &["show", &format!("{name}:number")]);
        let is_even = number.trim().parse::<u32>().unwrap() % 2 == 0;
        assert_eq!(run["check"]["exit_code"] == 0, is_even, "{run}");
        // What the check leaves is no part of the change.
        assert_eq!(run["changed_files"].as_array().unwrap().len(), 2);
    }
    let shown =
        text(&scene.run(&["--best-of", "2", "--check", "true", "--branch", "t"], line).stdout);
    assert_eq!(shown.matches("keep").count(), 1, "{shown}");
    scene.assert_clean();
}

/// Ctrl-C ends every run of several, and nothing of them is left.
#[test]
fn interrupted_runs_side_by_side_all_end_and_leave_nothing() {
    let scene = Setting::new();
    let line = "echo begun > begun; sleep 7702@";
    let options = ["--best-of", "3", "--check", "true", "--branch", "try"];
    let child = scene.home.command(&scene.arguments(&options, line)).spawn().unwrap();
    let running = || {
        let runs = fs::read_dir(scene.agents().join("runs")).into_iter().flatten().count();
        let text = "sleep 7702@";
        runs == 3 && crate::harness::is_running(text)
    };
    until("they run", running);
    kill(i32::try_from(child.id()).unwrap(), "INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    until("they end", || !crate::harness::is_running("sleep 7702@"));
    scene.assert_clean();
}

/// Wherever the runner is killed, a sweep leaves the repository and the machine as they were.
#[test]
fn a_sweep_takes_back_what_a_killed_runner_left() {
    let scene = Setting::new();
    let rounds = u32::try_from(count(100)).unwrap();
    let refs = git(&scene.work, &["for-each-ref"]);
    let line = "echo x > new; echo y >> README.md; seq 1000 > many";
    let begun = std::time::Instant::now();
    scene.report(&["--mode", "worktree", "--branch", "whole"], line);
    let whole = begun.elapsed();
    git(&scene.work, &["branch", "-qD", "whole"]);
    for round in 0..rounds {
        let mode = ["worktree", "clone", "in-place"][usize::try_from(round % 3).unwrap()];
        let branch: &[&str] = if mode == "in-place" { &[] } else { &["--branch", "killed"] };
        let options = [&["--mode", mode], branch].concat();
        let arguments = scene.arguments(&options, line);
        let mut child = scene.home.command(&arguments).spawn().unwrap();
        pass(whole * round / rounds);
        child.kill().unwrap();
        end(&mut child);
        // What still writes for the run holds its lock.
        until("nothing of it goes on", || {
            let swept = scene.home.json(&["sweep", "--json"]);
            assert_eq!(swept["runs"]["unclear"], serde_json::json!([]), "{round}");
            swept["runs"]["running"] == 0
        });
        // It had come to its end but for the removal of its sandbox.
        if git(&scene.work, &["branch", "--list", "killed"]).contains("killed") {
            assert_eq!(git(&scene.work, &["show", "killed:new"]), "x", "{round}");
            git(&scene.work, &["branch", "-qD", "killed"]);
        }
        assert_eq!(git(&scene.work, &["for-each-ref"]), refs, "{round}");
        if mode == "in-place" {
            // What the agent did is there, and nothing else.
            let changed = git(&scene.work, &["status", "--porcelain"]);
            for line in changed.lines() {
                let name = line.get(3..).unwrap_or_default().trim();
                assert!(["new", "README.md", "many"].contains(&name), "{round}: {changed}");
            }
            git(&scene.work, &["checkout", "-q", "."]);
            git(&scene.work, &["clean", "-fdq"]);
        }
        assert_eq!(git(&scene.work, &["status", "--porcelain"]), "", "{round}");
        scene.assert_clean();
    }
}
