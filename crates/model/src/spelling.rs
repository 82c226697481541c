//! Suggestions for words that somebody mistyped.

use strsim::osa_distance;

/// Nobody mistypes a word this long; comparing it would only cost time.
const LONGEST: usize = 100;

/// The known word that `typed` most likely meant, if one is near enough to be worth saying.
pub(crate) fn did_you_mean<'a>(
    typed: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let plain = |word: &str| word.to_lowercase().replace(['-', '_', ' '], "");
    if typed.len() > LONGEST {
        return None;
    }
    let typed_plain = plain(typed);
    let near = (typed_plain.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|word| (osa_distance(&typed_plain, &plain(word)), word))
        .filter(|(distance, _)| *distance <= near)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_only_what_is_near() {
        let known = ["entries", "environment", "users", "extra_path_grants", "root"];
        let cases = [
            ("entreis", Some("entries")),
            ("enviroment", Some("environment")),
            ("extra-path-grants", Some("extra_path_grants")),
            ("Root", Some("root")),
            ("user", Some("users")),
            ("mounts", None),
            ("x", None),
        ];
        for (typed, want) in cases {
            assert_eq!(did_you_mean(typed, known), want, "typed {typed:?}");
        }
    }
}
