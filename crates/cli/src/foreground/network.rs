//! Whether a command had network_errors with the network, as far as its own words tell: the end of what it said is
//! looked through, and none of it is held back.

/// How programs and libraries say that a name was not resolved, or that nothing was reached.
const SIGNS: [&str; 14] = [
    "name resolution",
    "name or service not known",
    "nodename nor servname",
    "no address associated with hostname",
    "could not resolve",
    "unable to resolve host",
    "failed to resolve",
    "temporary failure resolving",
    "eai_again",
    "enotfound",
    "network is unreachable",
    "enetunreach",
    "dns error",
    // All that is left of it where pip does not try again.
    "no matching distribution found",
];

/// How much of the end of a stream is looked through.
const KEPT: usize = 16 * 1024;

/// The end of what a command said.
#[derive(Debug, Default)]
pub(crate) struct NetworkErrorScanner {
    tail: Vec<u8>,
}

impl NetworkErrorScanner {
    /// Looks at a piece that is passed on.
    pub(crate) fn look(&mut self, part: &[u8]) {
        let new = &part[part.len().saturating_sub(KEPT)..];
        self.tail.extend_from_slice(new);
        // Cleared away in large parts, so that small pieces cost nothing.
        if self.tail.len() > 4 * KEPT {
            self.tail.drain(..self.tail.len() - KEPT);
        }
    }

    /// Whether there are words of such network_errors in it.
    pub(crate) fn seen(&self) -> bool {
        let text = String::from_utf8_lossy(&self.tail).to_lowercase();
        SIGNS.iter().any(|sign| text.contains(sign))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_words_of_common_programs() {
        let cases = [
            ("curl: (6) Could not resolve host: example.org", true),
            ("ping: example.org: Temporary failure in name resolution", true),
            ("fatal: unable to access 'https://a/': Could not resolve host: a", true),
            ("npm error code EAI_AGAIN", true),
            ("connect: Network is unreachable", true),
            ("Err:1 http://deb.debian.org  Temporary failure resolving 'deb.debian.org'", true),
            ("error: dns error: failed to lookup address information", true),
            ("No such file or directory", false),
            ("", false),
        ];
        for (words, want) in cases {
            let mut network_errors = NetworkErrorScanner::default();
            words.as_bytes().chunks(5).for_each(|part| network_errors.look(part));
            assert_eq!(network_errors.seen(), want, "{words}");
        }
    }

    #[test]
    fn looks_at_the_end_and_keeps_little() {
        let mut network_errors = NetworkErrorScanner::default();
        network_errors.look(b"could not resolve host");
        for _ in 0..100 {
            network_errors.look(&[b'x'; 1000]);
        }
        assert!(!network_errors.seen() && network_errors.tail.len() <= 4 * KEPT);
        let long = [vec![b'x'; 1 << 20], b"Network is unreachable".to_vec()].concat();
        network_errors.look(&long);
        assert!(network_errors.seen());
    }
}
