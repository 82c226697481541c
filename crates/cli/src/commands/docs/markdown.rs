//! The reference of all commands as a page.

use std::fmt::Write;

use clap::{Arg, Command};

/// Where the page begins.
const HEAD: &str = "# Command line\n\nEvery command with its options, as `--help` says them. This page is written by `cargo xtask \
                    docs`.\n\nA session is named by its id, the beginning of its id, or the name it was made with (`create \
                    --name`). Exit codes: the command's own; 124 after a timeout, 125 if Bastide itself failed, 126 if the program \
                    cannot be executed, 127 if it was not found, 128+N if signal N ended it.\n";

/// The page.
pub(super) fn page(mut program: Command) -> String {
    program.build();
    let mut text = HEAD.to_owned();
    for command in program.get_subcommands().filter(|command| is_shown(command)) {
        describe(&mut text, command, "bastide");
    }
    text
}

/// Whether a command is for people.
fn is_shown(command: &Command) -> bool {
    command.get_name() != "help" && !command.is_hide_set()
}

fn describe(text: &mut String, command: &Command, above: &str) {
    let name = format!("{above} {}", command.get_name());
    let level = if above == "bastide" { "##" } else { "###" };
    push(text, &format!("\n{level} {name}\n"));
    let about = command.get_long_about().or_else(|| command.get_about());
    if let Some(about) = about {
        push(text, &format!("\n{}\n", about.to_string().trim()));
    }
    let subcommands = command.get_subcommands().filter(|inner| is_shown(inner));
    let subcommands: Vec<_> = subcommands.collect();
    if subcommands.is_empty() {
        push(text, &format!("\n```text\n{}\n```\n", usage(command, &name)));
        options(text, command);
    }
    for inner in subcommands {
        describe(text, inner, &name);
    }
}

fn usage(command: &Command, name: &str) -> String {
    let mut parts = vec![name.to_owned()];
    if command.get_opts().next().is_some() || command.get_arguments().any(is_flag) {
        parts.push("[OPTIONS]".to_owned());
    }
    parts.extend(command.get_positionals().map(|arg| match arg.is_required_set() {
        true => placeholder(arg),
        false => format!("[{}]", placeholder(arg)),
    }));
    parts.join(" ")
}

fn is_flag(arg: &Arg) -> bool {
    !arg.is_positional() && !is_everywhere(arg)
}

fn is_everywhere(arg: &Arg) -> bool {
    matches!(arg.get_id().as_str(), "help" | "version")
}

fn placeholder(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let more =
        if arg.get_num_args().is_some_and(|range| range.max_values() > 1) { "…" } else { "" };
    match names.first() {
        Some(name) => format!("{name}{more}"),
        None => arg.get_id().to_string().to_uppercase(),
    }
}

/// The options by their groups, in the order of the help.
fn options(text: &mut String, command: &Command) {
    let args: Vec<_> =
        command.get_arguments().filter(|arg| !is_everywhere(arg) && !arg.is_hide_set()).collect();
    let mut groups: Vec<&str> = Vec::new();
    for arg in &args {
        let group = arg.get_help_heading().unwrap_or_default();
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for group in groups {
        if !group.is_empty() {
            push(text, &format!("\n{group}:\n"));
        }
        push(text, "\n");
        let of_group = |arg: &&&Arg| arg.get_help_heading().unwrap_or_default() == group;
        for arg in args.iter().filter(of_group) {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            push(text, &format!("- `{}`: {help}{}{}\n", spelled(arg), choices(arg), default(arg)));
        }
    }
}

fn spelled(arg: &Arg) -> String {
    if arg.is_positional() {
        return placeholder(arg);
    }
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names: Vec<_> = [short, long].into_iter().flatten().collect();
    let value = match arg.get_action().takes_values() {
        true => format!(" {}", placeholder(arg)),
        false => String::new(),
    };
    format!("{}{value}", names.join(", "))
}

fn choices(arg: &Arg) -> String {
    let values = arg.get_possible_values();
    let shown: Vec<_> = values.iter().filter(|value| !value.is_hide_set()).collect();
    if shown.is_empty() || !arg.get_action().takes_values() {
        return String::new();
    }
    let parts: Vec<_> = shown.iter().map(|value| format!("`{}`", value.get_name())).collect();
    format!(" ({})", parts.join(", "))
}

fn default(arg: &Arg) -> String {
    let values: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if values.is_empty() || !arg.get_action().takes_values() || arg.is_hide_default_value_set() {
        return String::new();
    }
    format!("; by default `{}`", values.join(" "))
}

fn push(text: &mut String, more: &str) {
    // Writing to a text cannot fail.
    let _ = write!(text, "{more}");
}
