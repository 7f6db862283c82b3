use super::super::testing::Driver;
use super::*;

#[test]
fn the_configuration_holds_the_tag() {
    let mut d = Driver::new(Fs9p::new("vbtsroot", Path::new("/"), Access::ReadOnly).unwrap());
    assert_eq!((d.get(0x008), d.get(0x010) & 1), (9, 1));
    assert_eq!(d.get(0x100) & 0xFFFF, 8);
    let mut tag = [0; 8];
    crate::BusDevice::read(&mut d.device, 0, 0x102, &mut tag);
    assert_eq!(&tag, b"vbtsroot");
}

#[test]
fn requests_are_served_through_the_queue() {
    let mut d = Driver::new(Fs9p::new("t", Path::new("/"), Access::ReadOnly).unwrap());
    d.start();
    let version = b"\x15\0\0\0\x64\xFF\xFF\0\x20\0\0\x08\09P2000.L";
    let mut answer = version.to_vec();
    answer[4] += 1;
    assert_eq!(d.exchange(0, version, 100), answer);
    assert_eq!(
        d.exchange(0, version, 10),
        answer[..10],
        "a short buffer gets what fits"
    );
    assert_eq!(
        d.exchange(0, &[], 100)[4],
        7,
        "an empty request is an error"
    );
    assert_eq!(
        d.exchange(0, b"\x0B\0\0\0\x7A\x01\0\0\0\0\0", 11)[..7],
        *b"\x0B\0\0\0\x07\x01\0"
    );
}

#[test]
fn a_reset_ends_the_session() {
    let mut d = Driver::new(Fs9p::new("t", Path::new("/"), Access::ReadOnly).unwrap());
    d.start();
    let attach = b"\x17\0\0\0\x68\0\0\x05\0\0\0\xFF\xFF\xFF\xFF\0\0\0\0\0\0\0\0";
    assert_eq!(d.exchange(0, attach, 100)[4], 0x69);
    assert_eq!(d.exchange(0, attach, 100)[4], 7, "fid in use");
    d.start();
    assert_eq!(d.exchange(0, attach, 100)[4], 0x69);
}

#[test]
fn a_state_is_saved_without_fids_only() {
    let share = || Fs9p::new("t", Path::new("/"), Access::ReadOnly).unwrap();
    let mut d = Driver::new(share());
    d.start();
    let version = b"\x15\0\0\0\x64\xFF\xFF\0\x20\0\0\x08\09P2000.L";
    let answer = d.exchange(0, version, 100);
    d.replace(share());
    let attach = b"\x17\0\0\0\x68\0\0\x05\0\0\0\xFF\xFF\xFF\xFF\0\0\0\0\0\0\0\0";
    assert_eq!(d.exchange(0, attach, 100)[4], 0x69);
    let error = d.device.device_mut().state().unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot save the state of the 9P share t: \
         the guest has 1 fids (5): unmount the share first"
    );
    d.exchange(0, b"\x0B\0\0\0\x78\x01\0\x05\0\0\0", 100);
    d.replace(share());
    assert_eq!(d.exchange(0, version, 100), answer);
}
