//! What is left of an error that may hold a mount's credentials.

use super::{Detail, Error, ErrorClass, ErrorKind, raise};

const PROTECTED: &str = "sandbox operation failed while using a protected mount configuration";
const INVALID_MOUNT: &str = "sandbox mount configuration is invalid";

impl Error {
    /// Says that the words of this error were written by us and hold nothing of the caller's, so
    /// that they may survive [`Error::redacted`].
    #[must_use]
    pub fn with_safe_message(mut self) -> Self {
        self.data.message_is_safe = true;
        self
    }

    /// Says that the context of this error speaks of a mount that may have credentials: past the
    /// edge of a session, only what [`Error::redacted`] leaves of it may be shown.
    #[must_use]
    pub fn with_protection(mut self) -> Self {
        self.data.protected = true;
        self
    }

    /// The error as it may be shown past the edge of a session: redacted if credentials were in
    /// play, or if it was [protected](Error::with_protection).
    #[must_use]
    pub fn redacted_if(self, credentials_in_play: bool) -> Self {
        if credentials_in_play || self.data.protected { self.redacted() } else { self }
    }

    /// Whether this error stands for another whose data were removed.
    #[must_use]
    pub fn is_redacted(&self) -> bool {
        self.data.redacted
    }

    /// The error to show instead of this one when a mount's credentials are in play.
    ///
    /// A program still sees the class, the code, the operation and whether to try again. Words,
    /// context, cause and output are gone: any of them may hold a key.
    ///
    /// ```
    /// use bastide_model::{Error, ErrorClass};
    ///
    /// let error = bastide_model::error::raise::exec_nonzero(["mount", "-o", "key=SECRET"], 3, "", "bad SECRET").redacted();
    /// assert_eq!((error.class(), error.exit_code()), (Some(ErrorClass::ExecNonZeroError), Some(1)));
    /// assert!(!format!("{error:?}").contains("SECRET"));
    /// ```
    #[must_use]
    pub fn redacted(self) -> Self {
        let data = *self.data;
        if data.kind == ErrorKind::Cancelled {
            return Self::new(ErrorKind::Cancelled, "cancelled").marked_redacted();
        }
        let class = data.class.filter(|class| class.is_structured());
        let (Some(class), Some(code), Some(op)) = (class, data.code, data.op) else {
            return raise::runtime_error(PROTECTED).marked_redacted();
        };
        let message = match class {
            _ if data.message_is_safe => data.message,
            ErrorClass::MountConfigError => INVALID_MOUNT.to_owned(),
            _ => PROTECTED.to_owned(),
        };
        let mut safe = Self::new(data.kind, message).with_class(class).with_code(code);
        safe = safe.with_op(op).with_retryable(data.retryable);
        safe.data.detail = data.detail.neutral();
        safe.marked_redacted()
    }

    fn marked_redacted(mut self) -> Self {
        self.data.redacted = true;
        self
    }
}

impl Detail {
    /// The same fields with values that say nothing.
    fn neutral(&self) -> Self {
        Self {
            command: self.command.is_some().then(Vec::new),
            exit_code: self.exit_code.map(|_| 1),
            stdout: self.stdout.is_some().then(Vec::new),
            stderr: self.stderr.is_some().then(Vec::new),
            timeout_s: None,
            session_id: self.session_id.map(|_| -1),
            errno: None,
            status: None,
            fields: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_programs_branch_on_and_nothing_else() {
        use ErrorClass as C;
        let cases = [
            (raise::exec_timeout(["a"], None), Some(C::ExecTimeoutError), PROTECTED),
            (raise::mount_config("key SECRET"), Some(C::MountConfigError), INVALID_MOUNT),
            (raise::mount_config("known").with_safe_message(), Some(C::MountConfigError), "known"),
            (raise::value_error("SECRET"), Some(C::RuntimeError), PROTECTED),
            (Error::new(ErrorKind::Io, "SECRET"), Some(C::RuntimeError), PROTECTED),
            (Error::new(ErrorKind::Cancelled, "SECRET"), None, "cancelled"),
        ];
        for (error, class, message) in cases {
            let (code, op) = (error.error_code(), error.op());
            let safe = error
                .with_context("key", "SECRET")
                .with_source(raise::value_error("SECRET"))
                .redacted();
            assert_eq!((safe.class(), safe.message()), (class, message));
            assert_eq!((safe.error_code(), safe.op()), (code, op));
            assert!(safe.context().is_empty() && safe.is_redacted());
            assert!(std::error::Error::source(&safe).is_none());
        }
    }
}
