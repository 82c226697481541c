//! Why a store cannot be mounted, told from what a program says of it.
//!
//! What the program says may hold a key in any spelling, so none of it is passed on: only which of the
//! known causes it names.

/// What programs say, in small letters, and what it means. The first that is found counts.
const CAUSES: &[(&[&str], &str)] = &[
    (
        &["requesttimetooskewed", "clock skew"],
        "the clocks of this machine and of the store differ too much",
    ),
    (&["expiredtoken", "token has expired", "token is expired"], "the token has expired"),
    (&["is a file not a directory"], "the prefix is an object, not a folder"),
    (&["connection refused"], "nothing listens at the endpoint"),
    (
        &["network is unreachable", "no route to host", "cannot assign requested address"],
        "the session has no network that leads to the endpoint",
    ),
    (
        &["no such host", "name resolution", "name or service not known"],
        "the name of the endpoint cannot be resolved",
    ),
    (
        &["nosuchbucket", "bucket does not exist", "directory not found", "containernotfound"],
        "there is no such bucket",
    ),
    (
        &[
            "signaturedoesnotmatch",
            "invalidaccesskeyid",
            "accessdenied",
            "authenticationfailed",
            "authorizationfailure",
            "no authentication method",
            "forbidden",
            "unauthorized",
            "statuscode: 403",
            "status code: 403",
            "statuscode: 401",
            "status code: 401",
        ],
        "the store refuses the credentials, or wants some",
    ),
    (&["statuscode: 404", "status code: 404"], "there is no such bucket"),
    (&["certificate"], "the certificate of the endpoint is not trusted"),
    (&["i/o timeout", "deadline exceeded", "timed out"], "the endpoint does not answer in time"),
    (&["/dev/fuse", "fuse device not found", "fusermount"], "FUSE cannot be used in the session"),
    (&["operation not permitted", "permission denied"], "the session may not mount"),
    (&["unknown filesystem type"], "the kernel does not know the file system"),
];

/// The cause, if what was said names a known one.
pub(super) fn named_in(output: &[u8]) -> Option<&'static str> {
    let output = String::from_utf8_lossy(output).to_ascii_lowercase();
    let names = |words: &&[&str]| words.iter().any(|word| output.contains(word));
    CAUSES.iter().find(|(words, _)| names(words)).map(|(_, cause)| *cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_on_no_word_of_what_was_said() {
        let output = b"AccessDenied: SECRET is no key";
        let cause = named_in(output).unwrap();
        assert!(cause.contains("credentials") && !cause.contains("SECRET"));
        assert_eq!(named_in(b"SECRET"), None);
    }

    #[test]
    fn is_not_misled_by_numbers_in_addresses() {
        let refused = b"dial tcp 127.0.0.1:9403: connect: connection refused";
        assert!(named_in(refused).unwrap().contains("nothing listens"));
        assert_eq!(named_in(b"bucket-404 is odd"), None);
    }

    #[test]
    fn tells_a_wrong_clock_from_a_wrong_key() {
        let skewed = named_in(b"RequestTimeTooSkewed: ... status code: 403");
        assert!(skewed.unwrap().contains("clocks"));
    }
}
