//! What is promised to people is what is measured, and the other way round.
#![expect(dead_code, reason = "the bench uses more of what it shares with this test")]

#[path = "../benches/scenarios/operation.rs"]
mod operation;
#[path = "../benches/scenarios/random.rs"]
mod random;
#[path = "../benches/scenarios/scenario.rs"]
mod scenario;
#[path = "../benches/scenarios/who.rs"]
mod who;
#[path = "../benches/scenarios/workload.rs"]
mod workload;

use scenario::SCENARIOS;

#[test]
fn promises_what_is_measured() {
    let specification = concat!(env!("CARGO_MANIFEST_DIR"), "/../../SPECIFICATION.md");
    let specification = std::fs::read_to_string(specification).unwrap();
    let table = specification.split("## Beside others").nth(1).unwrap();
    let table = table.split("\n## ").next().unwrap();
    let promised: Vec<_> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    let measured = SCENARIOS.iter().flat_map(|scenario| {
        let promises = scenario.promises.iter();
        promises.map(|promise| format!("| {} | {} |", scenario.title, promise.text()))
    });
    let measured: Vec<_> = measured.collect();
    assert_eq!(promised, measured, "the table should be:\n{}", measured.join("\n"));
}
