//! An example of each part of a manifest, each a whole manifest.

/// The example of a definition of the schema; the empty name is the manifest itself.
pub(super) fn of(name: &str) -> Option<&'static str> {
    EXAMPLES.iter().find(|(other, _)| *other == name).map(|(_, example)| *example)
}

const EXAMPLES: [(&str, &str); 26] = [
    (
        "",
        "version: 1\nroot: /workspace\nentries:\n  hello.sh: {type: file, content: \"echo hello\\n\"}\nenvironment:\n  value: {GREETING: hello}\n",
    ),
    ("environment", "environment:\n  value:\n    GREETING: hello\n    LEVEL: \"3\"\n"),
    (
        "env_entry",
        "environment:\n  value:\n    GREETING:\n      description: what scripts say first\n      value: {value: hello}\n",
    ),
    ("env_value", "environment:\n  value:\n    GREETING: {type: str, value: hello}\n"),
    ("user", "users:\n  - name: ada\n  - name: grace\n"),
    ("group", "users: [{name: ada}]\ngroups:\n  - name: developers\n    users: [{name: ada}]\n"),
    (
        "path_grant",
        "extra_path_grants:\n  - path: /usr/share\n    read_only: true\n    description: documentation of the system\n",
    ),
    (
        "permissions",
        "entries:\n  private.txt:\n    type: file\n    content: \"only its owner reads this\\n\"\n    permissions: {owner: 6, group: 0, other: 0}\n",
    ),
    (
        "dir",
        "entries:\n  src:\n    type: dir\n    description: the sources\n    children:\n      main.py: {type: file, content: \"print('hello')\\n\"}\n",
    ),
    ("file", "entries:\n  notes/today.md:\n    type: file\n    content: |\n      # Today\n"),
    ("local_file", "entries:\n  setup.cfg:\n    type: local_file\n    src: ./config/setup.cfg\n"),
    ("local_dir", "entries:\n  assets:\n    type: local_dir\n    src: assets\n"),
    (
        "git_repo",
        "entries:\n  vendor/tool:\n    type: git_repo\n    repo: example/tool\n    ref: v1.2.3\n    subpath: lib\n",
    ),
    (
        "s3_mount",
        "entries:\n  data:\n    type: s3_mount\n    bucket: measurements\n    access_key_id: {from: \"env:S3_ID\"}\n    secret_access_key: {from: \"env:S3_KEY\"}\n    mount_strategy: {type: host}\n",
    ),
    (
        "r2_mount",
        "entries:\n  data:\n    type: r2_mount\n    bucket: pictures\n    account_id: account\n    mount_strategy: {type: host}\n",
    ),
    (
        "gcs_mount",
        "entries:\n  data:\n    type: gcs_mount\n    bucket: models\n    mount_strategy: {type: host}\n",
    ),
    (
        "azure_blob_mount",
        "entries:\n  data:\n    type: azure_blob_mount\n    account: account\n    container: container\n    mount_strategy: {type: host}\n",
    ),
    (
        "box_mount",
        "entries:\n  data:\n    type: box_mount\n    path: /Shared\n    mount_strategy: {type: in_container, pattern: {type: rclone}}\n",
    ),
    (
        "s3_files_mount",
        "entries:\n  data:\n    type: s3_files_mount\n    file_system_id: fs-0123\n    mount_strategy: {type: in_container, pattern: {type: s3files}}\n",
    ),
    (
        "host",
        "entries:\n  data:\n    type: s3_mount\n    bucket: measurements\n    mount_strategy: {type: host, cache_size: 1073741824}\n",
    ),
    (
        "in_container",
        "entries:\n  data:\n    type: s3_mount\n    bucket: measurements\n    mount_strategy: {type: in_container, pattern: {type: mountpoint}}\n",
    ),
    (
        "docker_volume",
        "entries:\n  data:\n    type: gcs_mount\n    bucket: models\n    mount_strategy: {type: docker_volume, driver: rclone}\n",
    ),
    (
        "rclone",
        "entries:\n  data:\n    type: r2_mount\n    bucket: pictures\n    account_id: account\n    mount_strategy:\n      type: in_container\n      pattern: {type: rclone, mode: fuse, extra_args: [--vfs-cache-mode, writes]}\n",
    ),
    (
        "mountpoint",
        "entries:\n  data:\n    type: s3_mount\n    bucket: measurements\n    mount_strategy:\n      type: in_container\n      pattern: {type: mountpoint, options: {prefix: 2025/, region: eu-west-1}}\n",
    ),
    (
        "fuse",
        "entries:\n  data:\n    type: azure_blob_mount\n    account: account\n    container: container\n    mount_strategy:\n      type: in_container\n      pattern: {type: fuse, cache_type: file_cache, cache_size_mb: 1024}\n",
    ),
    (
        "s3files",
        "entries:\n  data:\n    type: s3_files_mount\n    file_system_id: fs-0123\n    mount_strategy:\n      type: in_container\n      pattern: {type: s3files, options: {region: eu-west-1}}\n",
    ),
];
