//! Which arguments and names rclone may be given from a manifest.

/// What more arguments for rclone amount to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RcloneArgs {
    /// Whether all of them are known to be harmless.
    pub safe: bool,
    /// The configuration files they name.
    pub config_files: Vec<String>,
    /// Whether one asks for a configuration file without naming one.
    pub nameless_config_file: bool,
}

/// Harmless arguments that take no value.
const FLAGS: &[&str] = &["allow-other"];
/// Harmless arguments that take one.
const OPTIONS: &[&str] = &["buffer-size", "gid", "uid"];

/// Tells what arguments amount to; what is not text is `None`.
///
/// ```
/// use bastide_model::mount::analyze_rclone_args;
///
/// assert!(analyze_rclone_args(["--uid", "5", "--allow-other"].map(Some)).safe);
/// let args = analyze_rclone_args(["--config", "/etc/rclone.conf"].map(Some));
/// assert_eq!((args.safe, args.config_files), (false, vec!["/etc/rclone.conf".to_owned()]));
/// ```
pub fn analyze_rclone_args<'a>(args: impl IntoIterator<Item = Option<&'a str>>) -> RcloneArgs {
    let mut args = args.into_iter().peekable();
    let mut found =
        RcloneArgs { safe: true, config_files: Vec::new(), nameless_config_file: false };
    while let Some(arg) = args.next() {
        let Some(arg) = arg.filter(|arg| arg.starts_with('-')) else {
            found.safe = false;
            continue;
        };
        let option = arg.trim_start_matches('-');
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let name = name.to_lowercase().replace('_', "-");
        let is_value = |next: &&str| !next.starts_with('-');
        if name == "config" {
            found.safe = false;
            let file = match value {
                Some(file) => Some(file).filter(|file| !file.is_empty()),
                None => args.next().flatten().filter(is_value),
            };
            match file {
                Some(file) => found.config_files.push(file.to_owned()),
                None => found.nameless_config_file = true,
            }
            continue;
        }
        let is_harmless = match value {
            None if FLAGS.contains(&name.as_str()) => true,
            None if OPTIONS.contains(&name.as_str()) => {
                args.next_if(|next| next.as_ref().is_some_and(is_value)).is_some()
            }
            Some(value) => OPTIONS.contains(&name.as_str()) && !value.is_empty(),
            None => false,
        };
        found.safe &= is_harmless;
    }
    found
}

/// Whether a remote's name is only that: rclone also takes whole configurations for names.
///
/// ```
/// use bastide_model::mount::is_safe_remote_name;
///
/// assert!(is_safe_remote_name("team data.1"));
/// assert!(!is_safe_remote_name(":s3,access_key_id=AKIA"));
/// ```
#[must_use]
pub fn is_safe_remote_name(name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.is_empty()
        || name.starts_with(word)
            && !name.ends_with(' ')
            && name.chars().all(|c| word(c) || ". -".contains(c))
}
