//! Where this project does something else than the reference, on purpose.
//!
//! Each difference is a rule over inputs, so that it holds for cases nobody has written yet.
//! `docs/differences.md` explains the same rules to people.

use serde_json::Value;

/// One deliberate difference.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// The rule's name, here and in the document.
    pub name: &'static str,
    /// The functions it is about.
    pub functions: &'static [&'static str],
    /// Whether it is about this input.
    pub applies: fn(&Value) -> bool,
    /// Whether an answer is what this project promises instead; errors come as error objects.
    pub holds: fn(&Value) -> bool,
    /// What the reference does.
    pub reference: &'static str,
    /// What this project does.
    pub ours: &'static str,
    /// Why.
    pub why: &'static str,
}

/// Every deliberate difference.
#[must_use]
pub fn differences() -> &'static [Difference] {
    &[]
}

/// The rule about a case, where there is one.
pub(crate) fn matching(function: &str, input: &Value) -> Option<&'static Difference> {
    let mut rules = differences().iter();
    rules.find(|rule| rule.functions.contains(&function) && (rule.applies)(input))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_names_every_rule() {
        let document = include_str!("../../../../docs/differences.md");
        for rule in differences() {
            assert!(document.contains(&format!("`{}`", rule.name)), "{} is missing", rule.name);
        }
    }
}
