//! Datagrams whose destination is known, and whose source is chosen.
#![expect(unsafe_code, reason = "ancillary messages about addresses have no safe wrapper")]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{addr_of, addr_of_mut};

/// Room for one message about an address, aligned as the system wants it.
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

/// Has the destination told beside every datagram.
pub(crate) fn request_destination(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open as long as the borrow, and the option is a number that outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_PKTINFO,
            addr_of!(on).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The next datagram: how long it is, whom it is from, and where it was sent to.
pub(crate) fn receive_from(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, SocketAddrV4, Ipv4Addr)> {
    // SAFETY: an address of IPv4 is plain numbers, for which zero is a value.
    let mut from: libc::sockaddr_in = unsafe { zeroed() };
    let mut control = ControlBuffer([0; 64]);
    let mut slice = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: a header of null pointers and zeros is a valid value.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_name = addr_of_mut!(from).cast();
    header.msg_namelen =
        libc::socklen_t::try_from(size_of::<libc::sockaddr_in>()).map_err(io::Error::other)?;
    header.msg_iov = addr_of_mut!(slice);
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len();
    // SAFETY: every pointer of the header leads to memory of the length beside it that outlives the call.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the header was filled by the system, and its control memory is still there.
    let first = unsafe { libc::CMSG_FIRSTHDR(&header) };
    if first.is_null() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: it is not null, so it leads to a whole header in the control memory, which is aligned.
    let about = unsafe { &*first };
    if about.cmsg_level != libc::IPPROTO_IP || about.cmsg_type != libc::IP_PKTINFO {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the header is a whole one, and its value is behind it.
    let value = unsafe { libc::CMSG_DATA(first) };
    // SAFETY: behind a header of this kind the system put such a value; it may be unaligned.
    let info = unsafe { value.cast::<libc::in_pktinfo>().read_unaligned() };
    let address = Ipv4Addr::from_bits(u32::from_be(from.sin_addr.s_addr));
    let sender = SocketAddrV4::new(address, u16::from_be(from.sin_port));
    Ok((length, sender, Ipv4Addr::from_bits(u32::from_be(info.ipi_addr.s_addr))))
}

/// Sends a datagram from an address.
pub(crate) fn send_from(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    to: SocketAddrV4,
    from: Ipv4Addr,
) -> io::Result<()> {
    // SAFETY: an address of IPv4 is plain numbers, for which zero is a value.
    let mut name: libc::sockaddr_in = unsafe { zeroed() };
    name.sin_family = libc::sa_family_t::try_from(libc::AF_INET).map_err(io::Error::other)?;
    name.sin_port = to.port().to_be();
    name.sin_addr.s_addr = to.ip().to_bits().to_be();
    let mut control = ControlBuffer([0; 64]);
    let mut slice =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let size = u32::try_from(size_of::<libc::in_pktinfo>()).map_err(io::Error::other)?;
    // SAFETY: a header of null pointers and zeros is a valid value.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_name = addr_of_mut!(name).cast();
    header.msg_namelen =
        libc::socklen_t::try_from(size_of::<libc::sockaddr_in>()).map_err(io::Error::other)?;
    header.msg_iov = addr_of_mut!(slice);
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: it only computes.
    let space = unsafe { libc::CMSG_SPACE(size) };
    // SAFETY: it only computes.
    let length = unsafe { libc::CMSG_LEN(size) };
    header.msg_controllen = usize::try_from(space).map_err(io::Error::other)?;
    // SAFETY: the header's control memory has room for a header and such a value.
    let first = unsafe { libc::CMSG_FIRSTHDR(&header) };
    if first.is_null() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let info = libc::in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: libc::in_addr { s_addr: from.to_bits().to_be() },
        ipi_addr: libc::in_addr { s_addr: 0 },
    };
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let about = libc::cmsghdr {
        cmsg_len: length,
        cmsg_level: libc::IPPROTO_IP,
        cmsg_type: libc::IP_PKTINFO,
    };
    // SAFETY: it is not null and leads to the start of the control memory, which is aligned and large enough.
    unsafe { first.write(about) };
    // SAFETY: behind the header there is room for the value; it may be unaligned.
    let data = unsafe { libc::CMSG_DATA(first) };
    // SAFETY: as above.
    unsafe { data.cast::<libc::in_pktinfo>().write_unaligned(info) };
    // SAFETY: every pointer of the header leads to memory of the length beside it that outlives the call.
    let sent = unsafe {
        libc::sendmsg(socket.as_raw_fd(), &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
