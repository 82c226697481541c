//! Which fields of a mount grant access to something.

use super::inline_url::url_holds_authority;
use super::rclone_args::{analyze_rclone_args, is_safe_remote_name};
use super::rules::{
    CONFIG_FILE, Capability, EXTRA_ARGS, OPTIONS_ENDPOINT, OPTIONS_EXTRA, REMOTE_NAME, SourceRules,
    capability_of, source_rules,
};
use super::{Mount, MountPattern, MountSource, MountStrategy};
use crate::entry::{Entry, EntryKind};
use crate::manifest::Manifest;

impl Mount {
    /// The fields that grant access to something, or may: keys and tokens, addresses with more than
    /// a place in them, values that would break out of their line of a configuration, and whatever
    /// is handed on to somebody else unread.
    ///
    /// Of types of the program's own nothing is known, and nothing is listed.
    ///
    /// ```
    /// use bastide_model::Mount;
    /// use bastide_model::mount::{MountStrategy, S3};
    ///
    /// let source = S3 { access_key_id: Some("AKIA".to_owned()), ..S3::new("data") };
    /// let mount = Mount::new(source, MountStrategy::docker_volume("rclone"));
    /// assert_eq!(mount.authority_fields(), ["access_key_id"]);
    /// ```
    #[must_use]
    pub fn authority_fields(&self) -> Vec<&'static str> {
        let mut fields: Vec<&'static str> = Vec::new();
        if let Some(rules) = self.source_rules() {
            let is_given = |field: &&&str| self.source.text(field).is_some();
            fields.extend(rules.authority.iter().filter(is_given));
            let holds_authority =
                |field: &&&str| self.source.text(field).is_some_and(url_holds_authority);
            fields.extend(rules.urls.iter().filter(holds_authority));
            fields.extend(self.fields_with_line_breaks());
        }
        match &self.strategy {
            MountStrategy::DockerVolume { driver_options, .. } if !driver_options.is_empty() => {
                fields.push("mount_strategy.driver_options");
            }
            MountStrategy::InContainer { pattern } => fields.extend(pattern_authority(pattern)),
            MountStrategy::DockerVolume { .. }
            | MountStrategy::Host { .. }
            | MountStrategy::Custom(_) => {}
        }
        if matches!(&self.source, MountSource::S3Files(source) if !source.extra_options.is_empty())
        {
            fields.push("extra_options");
        }
        let mut listed = Vec::with_capacity(fields.len());
        for field in fields {
            if !listed.contains(&field) {
                listed.push(field);
            }
        }
        listed
    }

    /// The values that must not be told to anybody.
    #[must_use]
    pub fn authority_values(&self) -> Vec<&str> {
        let rules = self.source_rules();
        let fields = rules.map_or([].as_slice(), |rules| rules.authority).iter();
        let mut values: Vec<&str> = fields.filter_map(|field| self.source.text(field)).collect();
        if let MountStrategy::DockerVolume { driver_options, .. } = &self.strategy {
            values.extend(driver_options.values().map(|value| &**value));
        }
        values
    }

    /// Whether anything of the mount grants access, or could without our knowing.
    #[must_use]
    pub fn holds_authority(&self) -> bool {
        self.is_custom()
            || self.capability().is_some_and(|capability| capability.discovers)
            || !self.authority_fields().is_empty()
    }

    /// Whether a part of it is of a type of the program's own.
    pub(super) fn is_custom(&self) -> bool {
        matches!(self.source, MountSource::Custom(_))
            || matches!(self.strategy, MountStrategy::Custom(_))
    }

    pub(super) fn source_rules(&self) -> Option<&'static SourceRules> {
        match self.source {
            MountSource::Custom(_) => None,
            _ => source_rules(self.type_name()),
        }
    }

    pub(super) fn capability(&self) -> Option<&'static Capability> {
        let pattern = self.strategy.pattern().map(|pattern| pattern.kind().as_str());
        capability_of(self.type_name(), self.strategy.type_name(), pattern)
    }

    /// The fields that would be more than one line of rclone's configuration.
    pub(super) fn fields_with_line_breaks(&self) -> Vec<&'static str> {
        let lines = self.source_rules().map_or([].as_slice(), |rules| rules.rclone_lines);
        let breaks = |field: &&&str| self.source.text(field).is_some_and(has_line_break);
        lines.iter().filter(breaks).copied().collect()
    }
}

/// Whether a value would be more than one line.
pub(super) fn has_line_break(value: &str) -> bool {
    value.contains(['\r', '\n'])
}

fn pattern_authority(pattern: &MountPattern) -> Vec<&'static str> {
    let mut fields = Vec::new();
    match pattern {
        MountPattern::Rclone(rclone) => {
            if !is_safe_remote_name(rclone.remote_name.as_deref().unwrap_or_default()) {
                fields.push(REMOTE_NAME);
            }
            if rclone.config_file_path.is_some() {
                fields.push(CONFIG_FILE);
            }
            if !analyze_rclone_args(rclone.extra_args.iter().map(|arg| Some(arg.as_str()))).safe {
                fields.push(EXTRA_ARGS);
            }
        }
        MountPattern::Mountpoint(options)
            if options.endpoint_url.as_deref().is_some_and(url_holds_authority) =>
        {
            fields.push(OPTIONS_ENDPOINT);
        }
        MountPattern::S3Files(options) if !options.extra_options.is_empty() => {
            fields.push(OPTIONS_EXTRA);
        }
        MountPattern::Mountpoint(_) | MountPattern::S3Files(_) | MountPattern::Fuse(_) => {}
    }
    fields
}

impl Manifest {
    /// Whether any mount [holds authority](Mount::holds_authority). What happens to such a manifest
    /// is told without details: any of them may be a credential.
    #[must_use]
    pub fn holds_mount_authority(&self) -> bool {
        let mut waiting: Vec<&Entry> = self.entries.values().collect();
        while let Some(entry) = waiting.pop() {
            match &entry.kind {
                EntryKind::Mount(mount) if mount.holds_authority() => return true,
                EntryKind::Dir { children } => waiting.extend(children.values()),
                _ => {}
            }
        }
        false
    }
}
