//! The example of this crate's page.

use std::os::unix::process::CommandExt;

use bastide_mount::{Channel, Command, MountSpec, Report};

#[test]
fn the_example_of_the_page_runs() -> Result<(), Box<dyn std::error::Error>> {
    let sidecar = env!("CARGO_BIN_EXE_bastide-sidecar");
    // The example begins.
    let source = r#"{"type": "s3", "bucket": "data", "endpoint": "http://127.0.0.1:1"}"#;
    let mount = MountSpec::new("data", serde_json::from_str(source)?);
    let (channel, stdin) = Channel::pair()?;
    channel.send(&Command::Probe { mount: Box::new(mount) })?;
    let mut command = std::process::Command::new(sidecar);
    command.arg0("bastide-mount").stdin(stdin).status()?;
    let answer = channel.receive::<Report>()?;
    assert!(matches!(answer, Some((Report::Probed { error: Some(_) }, _))));
    // The example ends.
    let between = |text: &str, first: &str, last: &str| {
        let inside = text.split_once(first).and_then(|(_, rest)| rest.split_once(last));
        inside.map(|(inside, _)| inside.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let page = between(include_str!("../../README.md"), "```rust\n", "```");
    let here = between(include_str!("page.rs"), "// The example begins.\n", "// The example ends.");
    assert_eq!(page, here);
    Ok(())
}
