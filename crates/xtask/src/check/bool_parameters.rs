//! What a call says by a bare `true` says nothing to its reader: public functions of libraries take a type with two names,
//! or are two.

use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::tree::{library_sources, shown};
use crate::shell::{Outcome, say, top};

/// Functions whose name says what the one condition is for.
const CONDITIONS: [(&str, &str); 1] = [("crates/model/src/error/redact.rs", "redacted_if")];

/// Fails on a public function of a library that is told something by a bare `bool`.
pub(crate) fn check() -> Outcome {
    let wrong = problems(&top(), &CONDITIONS)?;
    if wrong.is_empty() {
        say("no public function of a library takes a bare bool");
        return Ok(());
    }
    Err(wrong.join("; ").into())
}

fn problems(top: &Path, conditions: &[(&str, &str)]) -> Outcome<Vec<String>> {
    let mut wrong = Vec::new();
    for file in library_sources(top)? {
        let name = shown(&file, top);
        let tokens = fs::read_to_string(&file)?.parse::<TokenStream>();
        let mut found = Vec::new();
        collect(tokens.map_err(|error| format!("{name}: {error}"))?, &mut found);
        found.retain(|function| !conditions.contains(&(name.as_str(), function.as_str())));
        wrong.extend(found.iter().map(|function| format!("{name}: {function} takes a bare bool")));
    }
    Ok(wrong)
}

/// The names of functions that are public without bounds and have such a parameter.
fn collect(tokens: TokenStream, found: &mut Vec<String>) {
    let (mut is_public, mut function) = (false, None);
    // How deep in the generic parameters of a function: bounds such as `Fn(bool)` have parentheses, too.
    let (mut depth, mut is_arrow) = (0_u32, false);
    for token in tokens {
        match token {
            TokenTree::Ident(word) => match word.to_string().as_str() {
                "pub" => (is_public, function) = (true, None),
                "async" | "const" | "unsafe" => {}
                "fn" if is_public => function = Some(String::new()),
                name => {
                    is_public = false;
                    if function.as_ref().is_some_and(String::is_empty) {
                        (function, depth) = (Some(name.to_owned()), 0);
                    }
                }
            },
            TokenTree::Group(group) => {
                // The first parentheses after the name hold the parameters; those after `pub` bound it.
                if group.delimiter() == Delimiter::Parenthesis {
                    is_public = false;
                    if depth == 0
                        && let Some(name) = function.take()
                        && has_bool(group.stream())
                    {
                        found.push(name);
                    }
                } else {
                    function = None;
                    collect(group.stream(), found);
                }
            }
            TokenTree::Punct(punct) => {
                match punct.as_char() {
                    '<' => depth += 1,
                    '>' if !is_arrow => depth = depth.saturating_sub(1),
                    _ => {}
                }
                is_arrow = punct.as_char() == '-';
            }
            TokenTree::Literal(_) => {}
        }
    }
}

/// Whether a parameter is a `bool` and nothing around it.
fn has_bool(parameters: TokenStream) -> bool {
    let words: Vec<_> = parameters.into_iter().map(|token| token.to_string()).collect();
    words.windows(2).enumerate().any(|(at, pair)| {
        let next = words.get(at + 2).map(String::as_str);
        pair == [":", "bool"] && matches!(next, None | Some(","))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tree::made_up;
    use super::*;

    #[test]
    fn finds_bare_bools_of_public_functions() {
        let source = "\
            pub fn bad(a: u8, b: bool) {}\n\
            impl A { pub async fn worse<T: Into<u8>>(&self, quick: bool,) -> bool { true } }\n\
            pub(crate) fn within(a: bool) {}\n\
            fn own(a: bool) { pub const B: bool = true; }\n\
            pub fn fine(a: Option<bool>, b: impl Fn(bool) -> bool) -> bool { true }\n\
            pub fn bounded<F: Fn(u8) -> bool>(f: F, b: bool) {}\n\
            pub fn told_if(a: bool) {}\n";
        let top = made_up::tree(&[
            ("crates/a/Cargo.toml", ""),
            ("crates/a/src/lib.rs", source),
            ("crates/cli/Cargo.toml", ""),
            ("crates/cli/src/lib.rs", source),
        ]);
        let wrong = problems(top.path(), &[("crates/a/src/lib.rs", "told_if")]).unwrap();
        assert_eq!(
            wrong,
            [
                "crates/a/src/lib.rs: bad takes a bare bool",
                "crates/a/src/lib.rs: worse takes a bare bool",
                "crates/a/src/lib.rs: bounded takes a bare bool"
            ]
        );
    }
}
