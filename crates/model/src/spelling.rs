//! Suggestions for words that somebody mistyped.

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
        .map(|word| (distance(&typed_plain, &plain(word)), word))
        .filter(|(distance, _)| *distance <= near)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// How many letters have to be inserted, removed, changed or swapped with their neighbour.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    // Three rows of the usual table are enough: a swap looks back two.
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, a) in left.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, b) in right.iter().enumerate() {
            let changed = last[column] + usize::from(a != b);
            let mut best = changed.min(last[column + 1] + 1).min(current[column] + 1);
            let swapped = row > 0 && column > 0 && left[row - 1] == *b && right[column - 1] == *a;
            if swapped {
                best = best.min(before_last[column - 1] + 1);
            }
            current.push(best);
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last.last().copied().unwrap_or_default()
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
