//! The Kubernetes cluster for tests.

use std::path::PathBuf;

/// The variable that tells tests by which kubeconfig the cluster is reached. Its current context names a namespace with
/// what `bastide kubernetes manifest` prints, and the nodes have the images of [`engine`](crate::engine::images).
pub const KUBECONFIG: &str = "BASTIDE_TEST_KUBERNETES";

/// The context of that file whose namespace takes sessions of several users: it enforces Pod Security `baseline`.
pub const MANY_USERS: &str = "many-users";

/// The variable that says that a part of the trials is enough, as in a plain run of all tests.
pub const SOME: &str = "BASTIDE_TEST_KUBERNETES_SOME";

/// The kubeconfig of the cluster that tests use; or why there is none.
///
/// # Errors
///
/// Says why, for people.
pub fn for_tests() -> Result<PathBuf, String> {
    let file = std::env::var_os(KUBECONFIG).filter(|file| !file.is_empty()).map(PathBuf::from);
    file.ok_or_else(|| {
        format!("no Kubernetes cluster was prepared; {KUBECONFIG} names the kubeconfig of one")
    })
}
