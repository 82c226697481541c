//! What points are called.

use super::Point;
use super::file::Journal;
use crate::{Condition, Error, ErrorKind, Result};

/// The longest name of a point.
const MAX_NAME: usize = 128;

/// How different a name may be that is offered instead of an unknown one.
const NEAR: usize = 3;

/// The place of a point in a journal, and the tree there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PointRef {
    /// Where it is in the order of points: the beginning comes before all of them.
    pub(super) order: u64,
    pub(super) tree: String,
    pub(super) title: String,
}

/// Refuses a name that no point can have, or that another one has.
pub(super) fn check_new(journal: &Journal, name: &str) -> Result<()> {
    let invalid = |why: &str| {
        Error::new(
            ErrorKind::InvalidInput,
            format!("{name:?} cannot be the name of a point: {why}"),
        )
        .with_hint("a name is no number, has no `..`, `@`, `/` and spaces, no dot at its ends, and at most 128 bytes")
    };
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(invalid("it is empty, or too long"));
    }
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid("points are numbered, so a number is another point's"));
    }
    if name.contains("..") || name.contains('@') {
        return Err(invalid("`..` and `@` separate points from other things"));
    }
    if name.starts_with('.') || name.ends_with('.') {
        return Err(invalid("its dots could be those of `..`"));
    }
    let is_bad = |letter: char| letter.is_whitespace() || letter.is_control() || letter == '/';
    if name.contains(is_bad) || name.starts_with('-') {
        return Err(invalid("it has letters that are awkward to type"));
    }
    match journal.points.iter().find(|point| point.name.as_deref() == Some(name)) {
        None => Ok(()),
        Some(point) => {
            let message = format!("{name:?} is the name of point {} already", point.number);
            Err(Error::new(ErrorKind::Conflict, message).with_hint("choose another name"))
        }
    }
}

/// Finds a point by its number or name: what the workspace was after it. `0` is the beginning.
pub(super) fn find(journal: &Journal, text: &str) -> Result<PointRef> {
    // What a number looks like is nobody's name; `+1` is.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number: Option<u64> = is_number.then(|| text.parse().ok()).flatten();
    let is_it = |point: &&Point| match number {
        Some(number) => point.number == number,
        None => point.name.as_deref() == Some(text),
    };
    if let Some(index) = journal.points.iter().position(|point| is_it(&point)) {
        return point_ref(journal, index);
    }
    let first = journal.points.first();
    match number {
        Some(0) if journal.thinned == 0 => {
            let first = first.ok_or_else(no_points)?;
            let title = "the beginning".to_owned();
            return Ok(PointRef { order: 0, tree: first.before.clone(), title });
        }
        Some(number) if number <= journal.thinned => return Err(thinned(text, first)),
        None if journal.thinned_names.iter().any(|name| name == text) => {
            return Err(thinned(text, first));
        }
        _ => {}
    }
    Err(unknown(journal, text))
}

fn point_ref(journal: &Journal, index: usize) -> Result<PointRef> {
    let point = &journal.points[index];
    // What it was when the next one began is the nearest there is to the end of a command that nobody saw.
    let next = journal.points.get(index + 1).filter(|next| !next.aside && !point.aside);
    let seen = point.after.as_ref().or_else(|| next.map(|next| &next.before));
    let tree = seen.cloned().ok_or_else(|| {
        let message =
            format!("{} has no state after it: nobody saw its command end", point.title());
        let before = point.number.saturating_sub(1);
        Error::new(ErrorKind::NotFound, message)
            .with_hint(format!("point {before} is the one before it"))
    })?;
    Ok(PointRef { order: point.number, tree, title: point.title() })
}

fn no_points() -> Error {
    Error::new(ErrorKind::NotFound, "the session has no points yet")
        .with_condition(Condition::NoPoints)
}

fn thinned(text: &str, first: Option<&Point>) -> Error {
    let oldest =
        first.map_or_else(String::new, |first| format!("; the oldest is point {}", first.number));
    let message =
        format!("point {text} was removed: there were too many points, or it was too old{oldest}");
    Error::new(ErrorKind::NotFound, message).with_condition(Condition::PointThinned)
}

fn unknown(journal: &Journal, text: &str) -> Error {
    if journal.points.is_empty() {
        return no_points();
    }
    let message = format!("there is no point {text:?}");
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let last = journal.points.iter().map(|point| point.number).max().unwrap_or_default();
        return Error::new(ErrorKind::NotFound, format!("{message}; the last is {last}"))
            .with_condition(Condition::PointMissing);
    }
    let error = Error::new(ErrorKind::NotFound, message);
    let names = journal.points.iter().filter_map(|point| point.name.as_deref());
    let near = names.map(|name| (strsim::osa_distance(name, text), name)).min();
    match near {
        // Names of which every letter is another have nothing in common.
        Some((distance, name)) if distance <= NEAR && distance < name.chars().count() => {
            error.with_hint(format!("is it {name:?}?"))
        }
        _ => error.with_condition(Condition::PointMissing),
    }
}

/// Two points of a journal, as `A..B`; without `B`, and without any, what is there now.
pub(super) fn range(journal: &Journal, text: &str) -> Result<(PointRef, Option<PointRef>)> {
    let (from, to) = match text.split_once("..") {
        Some((from, to)) => (from, (!to.is_empty()).then_some(to)),
        None => (text, None),
    };
    if from.is_empty() {
        let message = format!("{text:?} says no point to begin at");
        return Err(Error::new(ErrorKind::InvalidInput, message)
            .with_condition(Condition::PointRangeMalformed));
    }
    let from = find(journal, from)?;
    let to = to.map(|to| find(journal, to)).transpose()?;
    match &to {
        Some(later) if later.order < from.order => {
            let message = format!("{} is after {}", from.title, later.title);
            Err(Error::new(ErrorKind::InvalidInput, message)
                .with_hint("write the earlier point first"))
        }
        _ => Ok((from, to)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::PointKind;
    use crate::journal::context::new_point;

    #[test]
    fn refuses_names_that_could_be_something_else() {
        let journal = Journal::default();
        for name in ["", "12", "a..b", "a@b", "a b", "a/b", "-a", "a\u{1b}", "v1.", ".v1"] {
            assert_eq!(check_new(&journal, name).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        for name in ["green", "v1.2", "before-12", "größe", "+1"] {
            check_new(&journal, name).unwrap();
        }
    }

    fn named(number: u64, name: Option<&str>) -> Point {
        Point {
            number,
            name: name.map(str::to_owned),
            after: Some(format!("tree {number}")),
            ..new_point(&Journal::default(), PointKind::Checkpoint, String::new(), String::new())
        }
    }

    #[test]
    fn offers_the_nearest_name_and_nothing_that_is_not_near() {
        let mut journal = Journal::default();
        journal.push(named(1, Some("one")));
        journal.push(named(2, None));
        let error = |text: &str| find(&journal, text).unwrap_err();
        assert_eq!(error("onee").hint(), Some("is it \"one\"?"));
        for text in ["abc", ".2", "nothing", "99"] {
            assert_eq!(error(text).condition(), Some(&Condition::PointMissing), "{text}");
        }
        assert!(error("99").message().ends_with("the last is 2"));
    }

    #[test]
    fn what_begins_with_a_sign_is_a_name() {
        let mut journal = Journal::default();
        journal.push(named(1, None));
        journal.push(named(2, Some("+1")));
        assert_eq!(find(&journal, "+1").unwrap().tree, "tree 2");
        assert_eq!(find(&journal, "1").unwrap().tree, "tree 1");
    }

    #[test]
    fn the_next_command_knows_what_one_left_whose_end_nobody_saw() {
        let mut journal = Journal::default();
        let command = |number: u64| Point {
            number,
            ..new_point(
                &Journal::default(),
                PointKind::Command,
                String::new(),
                format!("before {number}"),
            )
        };
        journal.push(command(1));
        assert_eq!(find(&journal, "1").unwrap_err().kind(), ErrorKind::NotFound);
        journal.push(command(2));
        assert_eq!(find(&journal, "1").unwrap().tree, "before 2");
    }
}
