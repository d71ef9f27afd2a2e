//! The structures and constants here are those of rdma-core's headers: a C program, made from the list below, prints the
//! headers' sizes, offsets and values.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use kbtp_verbs_sys::raw::*;
    use kbtp_verbs_sys::{Cm, Mlx5, Verbs};
    use std::fmt::Write as _;
    use std::mem::offset_of;
    use std::process::Command;

    /// One line of the C program and what it must print.
    struct Fact {
        /// A name for the line.
        name: String,
        /// A C expression.
        expression: String,
        ours: u64,
    }

    macro_rules! layout {
        ($facts:ident, $ours:ty, $theirs:literal: $($member:ident $(= $c:literal)?),* $(,)?) => {
            $facts.push(Fact {
                name: format!("size of {}", $theirs),
                expression: format!("sizeof({})", $theirs),
                ours: size_of::<$ours>() as u64,
            });
            $(
                let member = [$($c,)? stringify!($member)][0].trim_start_matches("r#");
                $facts.push(Fact {
                    name: format!("{}.{member}", $theirs),
                    expression: format!("offsetof({}, {member})", $theirs),
                    ours: offset_of!($ours, $member) as u64,
                });
            )*
        };
    }

    macro_rules! constants {
        ($facts:ident: $($name:ident),* $(,)?) => {
            $($facts.push(Fact {
                name: stringify!($name).to_owned(),
                expression: stringify!($name).to_owned(),
                ours: u64::try_from($name).expect("no constant here is negative"),
            });)*
        };
    }

    fn devices(facts: &mut Vec<Fact>) {
        layout!(facts, IbvGid, "union ibv_gid": raw);
        layout!(facts, IbvGidEntry, "struct ibv_gid_entry":
            gid, gid_index, port_num, gid_type, ndev_ifindex);
        layout!(facts, IbvDeviceAttr, "struct ibv_device_attr":
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id,
            hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr,
            max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
            max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
            max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr,
            max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
            phys_port_cnt);
        layout!(facts, IbvOdpCaps, "struct ibv_odp_caps":
            general_caps, rc_odp_caps = "per_transport_caps.rc_odp_caps",
            uc_odp_caps = "per_transport_caps.uc_odp_caps", ud_odp_caps = "per_transport_caps.ud_odp_caps");
        layout!(facts, IbvDeviceAttrEx, "struct ibv_device_attr_ex":
            orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock,
            device_cap_flags_ex, rest = "tso_caps");
        layout!(facts, IbvPortAttr, "struct ibv_port_attr":
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
            port_cap_flags2);
        layout!(facts, IbvAsyncEvent, "struct ibv_async_event": element, event_type);
        layout!(facts, IbvDevice, "struct ibv_device":
            ops = "_ops", node_type, transport_type, name, dev_name, dev_path, ibdev_path);
        layout!(facts, IbvContextOps, "struct ibv_context_ops":
            compat_query = "_compat_query_device", compat_pd_mr = "_compat_alloc_pd", alloc_mw, bind_mw,
            dealloc_mw, compat_create_cq = "_compat_create_cq", poll_cq, req_notify_cq,
            compat_cq_srq = "_compat_cq_event", post_srq_recv, compat_qp = "_compat_create_qp",
            post_send, post_recv, compat_ah = "_compat_create_ah");
        layout!(facts, IbvContext, "struct ibv_context":
            device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat);
        layout!(facts, VerbsContext, "struct verbs_context":
            query_port, advise_mr_to_query_rt = "advise_mr", create_cq_ex, private = "priv",
            query_device_ex, flow = "ibv_destroy_flow", open_qp, create_qp_ex, get_srq_num,
            create_srq_ex, open_xrcd, close_xrcd, placeholder = "_ABI_placeholder3", sz, context);
    }

    fn queues(facts: &mut Vec<Fact>) {
        layout!(facts, IbvWc, "struct ibv_wc":
            wr_id, status, opcode, vendor_err, byte_len, imm_or_rkey = "imm_data",
            imm_or_rkey = "invalidated_rkey", qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits);
        layout!(facts, IbvMwBindInfo, "struct ibv_mw_bind_info": mr, addr, length, mw_access_flags);
        layout!(facts, IbvPd, "struct ibv_pd": context, handle);
        layout!(facts, IbvMr, "struct ibv_mr": context, pd, addr, length, handle, lkey, rkey);
        layout!(facts, IbvMw, "struct ibv_mw": context, pd, rkey, handle, r#type);
        layout!(facts, IbvGlobalRoute, "struct ibv_global_route":
            dgid, flow_label, sgid_index, hop_limit, traffic_class);
        layout!(facts, IbvAhAttr, "struct ibv_ah_attr":
            grh, dlid, sl, src_path_bits, static_rate, is_global, port_num);
        layout!(facts, IbvSrqAttr, "struct ibv_srq_attr": max_wr, max_sge, srq_limit);
        layout!(facts, IbvSrqInitAttr, "struct ibv_srq_init_attr": srq_context, attr);
        layout!(facts, IbvQpCap, "struct ibv_qp_cap":
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data);
        layout!(facts, IbvQpInitAttr, "struct ibv_qp_init_attr":
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all);
        layout!(facts, IbvQpAttr, "struct ibv_qp_attr":
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit);
        layout!(facts, IbvSge, "struct ibv_sge": addr, length, lkey);
        layout!(facts, IbvSendWr, "struct ibv_send_wr":
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_or_rkey = "imm_data",
            imm_or_rkey = "invalidate_rkey", wr, xrc_remote_srqn = "qp_type.xrc.remote_srqn",
            bind_mw = "bind_mw.mw");
        for (member, ours) in [
            ("wr.rdma.remote_addr", offset_of!(IbvWrRdma, remote_addr)),
            ("wr.rdma.rkey", offset_of!(IbvWrRdma, rkey)),
            (
                "wr.atomic.remote_addr",
                offset_of!(IbvWrAtomic, remote_addr),
            ),
            (
                "wr.atomic.compare_add",
                offset_of!(IbvWrAtomic, compare_add),
            ),
            ("wr.atomic.swap", offset_of!(IbvWrAtomic, swap)),
            ("wr.atomic.rkey", offset_of!(IbvWrAtomic, rkey)),
        ] {
            facts.push(Fact {
                name: member.to_owned(),
                expression: format!("offsetof(struct ibv_send_wr, {member})"),
                ours: (offset_of!(IbvSendWr, wr) + ours) as u64,
            });
        }
        for (member, ours) in [
            ("bind_mw.rkey", offset_of!(IbvWrBindMw, rkey)),
            ("bind_mw.bind_info", offset_of!(IbvWrBindMw, bind_info)),
        ] {
            facts.push(Fact {
                name: member.to_owned(),
                expression: format!("offsetof(struct ibv_send_wr, {member})"),
                ours: (offset_of!(IbvSendWr, bind_mw) + ours) as u64,
            });
        }
        layout!(facts, IbvRecvWr, "struct ibv_recv_wr": wr_id, next, sg_list, num_sge);
        layout!(facts, IbvSrq, "struct ibv_srq":
            context, srq_context, pd, handle, mutex, cond, events_completed);
        layout!(facts, IbvQp, "struct ibv_qp":
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed);
        layout!(facts, IbvCompChannel, "struct ibv_comp_channel": context, fd, refcnt);
        layout!(facts, IbvCq, "struct ibv_cq":
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed);
    }

    fn connections(facts: &mut Vec<Fact>) {
        layout!(facts, RdmaIbAddr, "struct rdma_ib_addr": sgid, dgid, pkey);
        layout!(facts, RdmaAddr, "struct rdma_addr": src = "src_storage", dst = "dst_storage", addr);
        layout!(facts, RdmaRoute, "struct rdma_route": addr, path_rec, num_paths);
        layout!(facts, RdmaEventChannel, "struct rdma_event_channel": fd);
        layout!(facts, RdmaCmId, "struct rdma_cm_id":
            verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
            recv_cq_channel, recv_cq, srq, pd, qp_type);
        layout!(facts, RdmaConnParam, "struct rdma_conn_param":
            private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num);
        layout!(facts, RdmaCmEvent, "struct rdma_cm_event":
            id, listen_id, event, status, conn = "param.conn");
        layout!(facts, Mlx5dvDevxUmem, "struct mlx5dv_devx_umem": umem_id);
        layout!(facts, Mlx5dvDevxUmemIn, "struct mlx5dv_devx_umem_in":
            addr, size, access, pgsz_bitmap, comp_mask, dmabuf_fd);
        layout!(facts, Mlx5dvDevxUar, "struct mlx5dv_devx_uar":
            reg_addr, base_addr, page_id, mmap_off, comp_mask);
        layout!(facts, Mlx5dvDevxEventChannel, "struct mlx5dv_devx_event_channel": fd);
        layout!(facts, Mlx5dvContextAttr, "struct mlx5dv_context_attr": flags, comp_mask);
        layout!(facts, Mlx5dvDevxAsyncEventHdr, "struct mlx5dv_devx_async_event_hdr": cookie);
        layout!(facts, Mlx5dvPd, "struct mlx5dv_pd": pdn, comp_mask);
        layout!(facts, Mlx5dvAh, "struct mlx5dv_ah": av, comp_mask);
        layout!(facts, Mlx5WqeAv, "struct mlx5_wqe_av":
            key, dqp_dct, stat_rate_sl, fl_mlid, rlid, reserved0, rmac, tclass, hop_limit,
            grh_gid_fl, rgid);
        layout!(facts, Mlx5dvObj, "struct mlx5dv_obj": qp, cq, srq, rwq, dm, ah, pd);
    }

    fn numbers(facts: &mut Vec<Fact>) {
        constants!(facts:
            IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_TRANSPORT_IB,
            IBV_TRANSPORT_IWARP, IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_ETHERNET,
            IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_MGT_EXTENSIONS, IBV_DEVICE_MEM_WINDOW_TYPE_2A,
            IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_ATOMIC_NONE, IBV_ATOMIC_HCA, IBV_ATOMIC_GLOB,
            IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_RECV, IBV_ODP_SUPPORT_WRITE,
            IBV_ODP_SUPPORT_READ, IBV_PORT_DOWN, IBV_PORT_INIT, IBV_PORT_ARMED, IBV_PORT_ACTIVE,
            IBV_PORT_ACTIVE_DEFER, IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
            IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_PATH_MIG,
            IBV_EVENT_PATH_MIG_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR,
            IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SM_CHANGE, IBV_EVENT_SRQ_ERR,
            IBV_EVENT_SRQ_LIMIT_REACHED, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_CLIENT_REREGISTER,
            IBV_EVENT_GID_CHANGE, IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR,
            IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR,
            IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_GENERAL_ERR, IBV_WC_SEND, IBV_WC_RDMA_WRITE,
            IBV_WC_RDMA_READ, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_RECV,
            IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM, IBV_WC_IP_CSUM_OK, IBV_WC_WITH_INV,
            IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
            IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_MW_BIND, IBV_ACCESS_ZERO_BASED, IBV_ACCESS_ON_DEMAND,
            IBV_ACCESS_HUGETLB, IBV_MW_TYPE_1, IBV_MW_TYPE_2, IBV_QPT_RC, IBV_QP_STATE,
            IBV_QP_PATH_MTU, IBV_QP_CAP, IBV_QP_ACCESS_FLAGS, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR,
            IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
            IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
            IBV_WR_LOCAL_INV, IBV_WR_BIND_MW, IBV_WR_SEND_WITH_INV, IBV_SEND_FENCE,
            IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_SEND_INLINE, RDMA_CM_EVENT_ADDR_RESOLVED,
            RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ROUTE_ERROR,
            RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE,
            RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_REJECTED,
            RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_DEVICE_REMOVAL,
            RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_TIMEWAIT_EXIT, RDMA_PS_TCP, RDMA_OPTION_ID,
            RDMA_OPTION_ID_TOS, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_AFONLY,
            RDMA_OPTION_ID_ACK_TIMEOUT, MLX5DV_CONTEXT_FLAGS_DEVX,
            MLX5DV_UAR_ALLOC_TYPE_NC, MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA,
            MLX5DV_OBJ_AH, MLX5DV_OBJ_PD);
    }

    /// `IbvContext` is `struct ibv_context`; what is a union there, or has a name of its own, is in the list.
    fn c_name(ours: &str) -> String {
        match ours {
            "c_int" => return "int".to_owned(),
            "c_uint" => return "unsigned int".to_owned(),
            "c_char" => return "char".to_owned(),
            "u8" => return "uint8_t".to_owned(),
            "u16" => return "uint16_t".to_owned(),
            "u32" => return "uint32_t".to_owned(),
            "u64" => return "uint64_t".to_owned(),
            "usize" => return "size_t".to_owned(),
            "isize" => return "ssize_t".to_owned(),
            "bool" => return "bool".to_owned(),
            "c_void" | "()" => return "void".to_owned(),
            "sockaddr" => return "struct sockaddr".to_owned(),
            "IbvGid" => return "union ibv_gid".to_owned(),
            _ => {}
        }
        let mut name = String::from("struct ");
        for (at, letter) in ours.char_indices() {
            if letter.is_ascii_uppercase() && at > 0 {
                name.push('_');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }

    fn c_type(ours: &str) -> String {
        if let Some(to) = ours.strip_prefix("*mut ") {
            return format!("{} *", c_type(to));
        }
        if let Some(to) = ours.strip_prefix("*const ") {
            return format!("const {} *", c_type(to));
        }
        c_name(ours)
    }

    /// Functions that the headers declare for a structure of an older interface.
    const COMPATIBLE: [&str; 1] = ["ibv_query_port"];

    /// Lines that compile only if a function is declared as it is called here.
    fn prototypes() -> String {
        let mut text = String::new();
        let tables = [Verbs::PROTOTYPES, Cm::PROTOTYPES, Mlx5::PROTOTYPES];
        for one in tables.into_iter().flatten() {
            if COMPATIBLE.contains(&one.name) {
                continue;
            }
            let takes: Vec<String> = one.takes.iter().map(|ours| c_type(ours)).collect();
            let takes = if takes.is_empty() {
                "void".to_owned()
            } else {
                takes.join(", ")
            };
            let (gives, name) = (c_type(one.gives), one.name);
            writeln!(text, "{gives} (*own_{name})({takes}) = {name};").expect("memory");
        }
        text
    }

    #[test]
    fn names_of_c_are_made_from_ours() {
        assert_eq!(c_type("*mut *mut IbvDevice"), "struct ibv_device * *");
        assert_eq!(c_type("*const c_void"), "const void *");
        assert_eq!(c_type("*mut Mlx5dvDevxObj"), "struct mlx5dv_devx_obj *");
        let devx = Mlx5::PROTOTYPES.iter();
        assert!(devx.clone().count() >= 18);
        let lines = prototypes();
        assert!(
            lines.contains("int (*own_mlx5dv_devx_obj_destroy)(struct mlx5dv_devx_obj *) = "),
            "{lines}"
        );
    }

    /// What the headers say.
    enum Headers {
        /// A number for each fact.
        Say(Vec<u64>),
        /// They cannot be asked.
        AreNotHere(String),
    }

    fn headers(facts: &[Fact]) -> Headers {
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
        let stem = folder.join(format!("verbs_layout_{}", std::process::id()));
        let source = stem.with_extension("c");
        let mut text = String::from(
            "#include <inttypes.h>\n#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n\
             #include <infiniband/mlx5dv.h>\n#include <rdma/rdma_cma.h>\n",
        );
        text.push_str(&prototypes());
        text.push_str("int main(void) {\n");
        for fact in facts {
            let expression = &fact.expression;
            writeln!(
                text,
                "printf(\"%\" PRIu64 \"\\n\", (uint64_t)({expression}));"
            )
            .expect("memory");
        }
        text.push_str("return 0; }\n");
        std::fs::write(&source, text).expect("a writable target directory");
        let compiled = Command::new("cc")
            .args(["-Wall", "-Werror", "-Wno-deprecated-declarations", "-o"])
            .arg(&stem)
            .arg(&source)
            .args(["-libverbs", "-lrdmacm", "-lmlx5"])
            .output();
        std::fs::remove_file(&source).expect("it was just written");
        let compiled = match compiled {
            Ok(compiled) => compiled,
            Err(error) => return Headers::AreNotHere(format!("no C compiler: {error}")),
        };
        if !compiled.status.success() {
            let why = String::from_utf8_lossy(&compiled.stderr).into_owned();
            assert!(
                why.contains("No such file or directory") || why.contains("cannot find -l"),
                "the program does not compile:\n{why}"
            );
            return Headers::AreNotHere(format!("no headers of rdma-core: {why}"));
        }
        let ran = Command::new(&stem).output().expect("it was just built");
        std::fs::remove_file(&stem).expect("it was just built");
        assert!(ran.status.success());
        let text = String::from_utf8(ran.stdout).expect("ASCII");
        let numbers = text.lines().map(|line| line.parse().expect("a number"));
        Headers::Say(numbers.collect())
    }

    #[test]
    fn every_structure_and_constant_is_that_of_the_headers() {
        let mut facts = Vec::new();
        devices(&mut facts);
        queues(&mut facts);
        connections(&mut facts);
        numbers(&mut facts);
        let theirs = match headers(&facts) {
            Headers::Say(theirs) => theirs,
            Headers::AreNotHere(why) => {
                println!("not compared: {why}");
                assert!(
                    std::env::var_os("CI").is_none_or(|ci| ci != "true"),
                    "{why}"
                );
                return;
            }
        };
        assert_eq!(theirs.len(), facts.len());
        let wrong: Vec<String> = facts
            .iter()
            .zip(theirs)
            .filter(|(fact, theirs)| fact.ours != *theirs)
            .map(|(fact, theirs)| format!("{}: {} here, {theirs} there", fact.name, fact.ours))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
