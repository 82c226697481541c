//! Where in an input a value is.

use serde_json::Value;

use super::invalid::PathSegment;

/// Where a value is, as a chain back to the top of the input.
///
/// The reference's `loc` and the way a person would follow differ in two places: it leaves out the
/// keys of entry and environment maps, and it adds the tag of a tagged union.
#[derive(Debug)]
pub(super) enum InputPath<'a> {
    Top,
    Key(&'a Self, &'a str),
    Index(&'a Self, usize),
    /// A key that `loc` leaves out.
    Hidden(&'a Self, &'a str),
    /// A word that only `loc` has.
    Label(&'a Self, &'a str),
}

impl<'a> InputPath<'a> {
    fn parent(&self) -> Option<&'a Self> {
        match *self {
            Self::Top => None,
            Self::Key(parent, _)
            | Self::Index(parent, _)
            | Self::Hidden(parent, _)
            | Self::Label(parent, _) => Some(parent),
        }
    }

    pub(super) fn depth(&self) -> usize {
        self.steps(|_| Some(())).len()
    }

    /// What `step` says of every place from the top down to this one.
    fn steps<T>(&self, step: impl Fn(&InputPath<'_>) -> Option<T>) -> Vec<T> {
        let mut steps = Vec::new();
        let mut place = Some(self);
        while let Some(here) = place {
            steps.extend(step(here));
            place = here.parent();
        }
        steps.reverse();
        steps
    }

    /// The reference's `loc`.
    pub(super) fn loc(&self) -> Vec<Value> {
        self.steps(|place| match *place {
            InputPath::Top | InputPath::Hidden(..) => None,
            InputPath::Key(_, word) | InputPath::Label(_, word) => Some(Value::from(word)),
            InputPath::Index(_, index) => Some(Value::from(index)),
        })
    }

    /// The way a person would follow.
    pub(super) fn path(&self) -> Vec<PathSegment> {
        self.steps(|place| match *place {
            InputPath::Top | InputPath::Label(..) => None,
            InputPath::Key(_, key) | InputPath::Hidden(_, key) => {
                Some(PathSegment::Key(key.to_owned()))
            }
            InputPath::Index(_, index) => Some(PathSegment::Index(index)),
        })
    }
}
