//! Faults, and kills, in the verbs of the journal: the workspace is what it was or what it was to become, the journal says
//! which, and the other is not lost.

use std::cell::Cell;
use std::process::Output;

use serde_json::Value;

use super::{Setting, inject_all, kill_at_all};
use crate::harness::text;

/// The session a verb is about; it stays until its scene is given up.
fn subject(scene: &Setting) -> String {
    let others = scene.states().into_iter().find(|(id, _)| *id != scene.witness);
    others.map_or_else(|| scene.subject(""), |(id, _)| id)
}

/// A session that was one thing at its last point, and is another.
fn changed(scene: &Setting) -> String {
    let id = subject(scene);
    scene.write(&id, "before");
    scene.home.say(&["checkpoint", &id]);
    scene.write(&id, "after");
    id
}

/// Either state can still be had, whichever it is in.
fn has_both(scene: &Setting, id: &str, told: &str) {
    if scene.content(id) == "after" {
        scene.home.say(&["undo", id]);
    }
    assert_eq!(scene.content(id), "before", "{told}");
    scene.home.say(&["redo", id]);
    assert_eq!(scene.content(id), "after", "{told}");
    scene.home.say(&["snapshot", "verify"]);
}

fn undo(scene: &Setting) -> Vec<String> {
    vec!["undo".to_owned(), changed(scene)]
}

fn check_undo(scene: &Setting, verb: &[String], is_done: bool, told: &str) {
    let content = scene.content(&verb[1]);
    assert!(content == "before" || (!is_done && content == "after"), "{told}: {content}");
    has_both(scene, &verb[1], told);
}

#[test]
fn undoes_or_says_why_not() {
    inject_all(undo, |scene, verb, _, is_done, told| check_undo(scene, verb, is_done, told));
}

#[test]
fn undoes_or_not_wherever_it_is_killed() {
    kill_at_all(undo, check_undo);
}

fn redo(scene: &Setting) -> Vec<String> {
    let id = changed(scene);
    scene.home.say(&["undo", &id]);
    vec!["redo".to_owned(), id]
}

fn check_redo(scene: &Setting, verb: &[String], is_done: bool, told: &str) {
    let content = scene.content(&verb[1]);
    assert!(content == "after" || (!is_done && content == "before"), "{told}: {content}");
    if content == "before" {
        scene.home.say(&["redo", &verb[1]]);
    }
    has_both(scene, &verb[1], told);
}

#[test]
fn redoes_or_says_why_not() {
    inject_all(redo, |scene, verb, _, is_done, told| check_redo(scene, verb, is_done, told));
}

#[test]
fn redoes_or_not_wherever_it_is_killed() {
    kill_at_all(redo, check_redo);
}

/// A checkpoint with a name that no other has.
fn checkpoint(scene: &Setting, round: &Cell<u32>) -> Vec<String> {
    round.set(round.get() + 1);
    let (id, name) = (subject(scene), format!("point-{}", round.get()));
    scene.write(&id, &name);
    vec!["checkpoint".to_owned(), id, name]
}

fn check_checkpoint(scene: &Setting, verb: &[String], is_done: bool, told: &str) {
    let (id, name) = (&verb[1], &verb[2]);
    let log: Value = scene.home.json(&["log", "--json", id]);
    let names = log.as_array().unwrap().iter().filter(|point| point["name"] == name.as_str());
    let count = names.count();
    assert!(count == 1 || (!is_done && count == 0), "{told}: {log}");
    assert_eq!(scene.content(id), *name, "{told}");
    if count == 0 {
        scene.home.say(&["checkpoint", id, name]);
    }
    scene.write(id, "since");
    scene.home.say(&["restore", id, &format!("file@{name}")]);
    assert_eq!(scene.content(id), *name, "{told}");
}

#[test]
fn makes_points_or_says_why_not() {
    let round = Cell::new(0);
    inject_all(
        |scene| checkpoint(scene, &round),
        |scene, verb, _, is_done, told| check_checkpoint(scene, verb, is_done, told),
    );
}

#[test]
fn makes_points_or_not_wherever_it_is_killed() {
    let round = Cell::new(0);
    kill_at_all(|scene| checkpoint(scene, &round), check_checkpoint);
}

/// Every session that is neither the subject nor the witness.
fn forks(scene: &Setting, id: &str) -> Vec<(String, String)> {
    let all = scene.states().into_iter();
    all.filter(|(other, _)| *other != scene.witness && other != id).collect()
}

fn remove_forks(scene: &Setting, id: &str) {
    for (fork, _) in forks(scene, id) {
        scene.home.say(&["rm", &fork]);
    }
}

fn fork(scene: &Setting) -> Vec<String> {
    let id = subject(scene);
    remove_forks(scene, &id);
    scene.write(&id, "forked");
    vec!["fork".to_owned(), id]
}

fn check_fork(scene: &Setting, verb: &[String], is_done: bool, told: &str) {
    let id = verb[1].as_str();
    let forks = forks(scene, id);
    assert!(!is_done || forks.len() == 1, "{told}: {forks:?}");
    for (fork, state) in forks {
        if state == "running" {
            assert_eq!(scene.content(&fork), "forked", "{told}");
        } else {
            assert!(!is_done && state == "failed", "{told}: {fork} is {state}");
        }
        scene.home.say(&["rm", &fork]);
    }
    assert_eq!(scene.content(id), "forked", "{told}");
    let again = scene.home.say(&["fork", id]);
    assert_eq!(scene.content(again.trim()), "forked", "{told}");
    scene.home.say(&["rm", again.trim()]);
}

#[test]
fn forks_or_says_why_not() {
    inject_all(fork, |scene, verb, output: &Output, is_done, told| {
        assert_eq!(is_done, !text(&output.stdout).is_empty(), "{told}");
        check_fork(scene, verb, is_done, told);
    });
}

#[test]
fn forks_or_not_wherever_it_is_killed() {
    kill_at_all(fork, |scene, verb, is_done, told| {
        // Who ends with its maker does so by itself.
        crate::harness::until("no fork is being made", || {
            !forks(scene, &verb[1]).iter().any(|(_, state)| state == "starting")
        });
        check_fork(scene, verb, is_done, told);
    });
}

fn merge(scene: &Setting) -> Vec<String> {
    let id = subject(scene);
    remove_forks(scene, &id);
    scene.write(&id, "before");
    let fork = scene.home.say(&["fork", &id]).trim().to_owned();
    scene.write(&fork, "after");
    vec!["merge".to_owned(), id, fork]
}

fn check_merge(scene: &Setting, verb: &[String], is_done: bool, told: &str) {
    let (id, fork) = (&verb[1], &verb[2]);
    let content = scene.content(id);
    assert!(content == "after" || (!is_done && content == "before"), "{told}: {content}");
    assert_eq!(scene.content(fork), "after", "{told}");
    if content == "before" {
        scene.home.say(&["merge", id, fork]);
        assert_eq!(scene.content(id), "after", "{told}");
    }
}

#[test]
fn merges_or_says_why_not() {
    inject_all(merge, |scene, verb, _, is_done, told| check_merge(scene, verb, is_done, told));
}

#[test]
fn merges_or_not_wherever_it_is_killed() {
    kill_at_all(merge, check_merge);
}
