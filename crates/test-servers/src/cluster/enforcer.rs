//! The tests' own enforcer of closed networks: the cluster's network is a plain bridge, which keeps no policy.
//!
//! Nothing leaves a pod before its address is opened, so a closed pod is closed from its first moment. Opened is who is not
//! labelled as closed. It knows labels of Bastide and no selectors: it stands for a network that keeps the policies of
//! `bastide kubernetes manifest`, and proves nothing about others.

use std::fs;
use std::io;
use std::process::Command;

use super::{Cluster, process, read, run_quietly};

/// What it is called among the processes of a cluster.
const NAME: &str = "enforcer";

/// Starts it.
pub(super) fn start(cluster: &Cluster) -> io::Result<()> {
    let (table, pods) = (cluster.place.tag(), cluster.place.pods());
    let rule = format!("ip saddr {pods} ip saddr != @open drop;");
    let rules = format!(
        "table bridge {table} {{\n set open {{ type ipv4_addr; }}\n\
         chain forward {{ type filter hook forward priority 0; {rule} }}\n }}\n\
         table inet {table} {{\n set open {{ type ipv4_addr; }}\n\
         chain input {{ type filter hook input priority 0; {rule} }}\n\
         chain forward {{ type filter hook forward priority 0; {rule} }}\n }}\n"
    );
    let file = cluster.run().join("rules.nft");
    fs::write(&file, rules)?;
    run_quietly(Command::new("nft").arg("--file").arg(&file))?;
    // A watch ends with the server that answers it.
    let script = r#"
        while :; do
            "$0" --kubeconfig "$1" get pods --all-namespaces --watch --output "$2" | while read -r word network address; do
                [ -n "$address" ] || continue
                case $network in none-) verb=delete ;; *) verb=add ;; esac
                for family in bridge inet; do nft $verb element $family "$3" open "{ $address }"; done
            done
            sleep 1
        done"#;
    let shown = r#"jsonpath=pod {.metadata.labels.bastide\.network}- {.status.podIP}{"\n"}"#;
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(cluster.program("kubectl")).arg(cluster.kubeconfig());
    command.args([shown, &table]);
    process::start(&cluster.run(), NAME, &command)
}

/// Ends it: from now on the network keeps no policy.
pub(super) fn end(cluster: &Cluster) -> io::Result<()> {
    let ended = process::kill_session(&cluster.run(), NAME);
    for family in ["bridge", "inet"] {
        // What is not there needs not be removed.
        drop(read(Command::new("nft").args(["delete", "table", family, &cluster.place.tag()])));
    }
    ended
}
