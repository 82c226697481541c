# Makes a folder the root of whoever is in these namespaces, and goes on there: enter.sh ROOT RUSTUP_HOME CARGO_BIN
set -eu
root=$1 rustup=$2 programs=$3

mkdir -p "$root$rustup" "$root/opt/cargo-bin" "$root/.outside"
mount --bind "$root" "$root"
# Devices, but terminals and shared memory of its own.
mount --bind /dev "$root/dev"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount --rbind /sys "$root/sys"
# One of its own, with nothing over it: where part of it is covered, nobody but root can mount another.
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
# Where it is outside: a toolchain can be a link to another one by its whole path.
mount -o bind,ro "$rustup" "$root$rustup"
mount -o bind,ro "$programs" "$root/opt/cargo-bin"

# Not `chroot`: whoever is in one cannot make user namespaces.
cd "$root"
pivot_root . .outside
umount -l /.outside
rmdir /.outside
cd /root
exec env -i HOME=/root RUSTUP_HOME="$rustup" CARGO_TERM_COLOR=never \
    PATH=/root/.cargo/bin:/opt/cargo-bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    bash /first_hour.sh
