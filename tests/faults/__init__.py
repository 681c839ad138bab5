"""Faults of network, process, time and load (rows N, P, T and L of the project's table), staged on real processes.

``pairs`` (a master, slaves, the proxy between them, and the oracle), ``scenarios`` (several at a time: most of a fault
is waiting), ``crowd`` (many raw peers), ``soak`` (a command), ``shim`` (another wall clock, another table of hosts).

What a row's time is to 20 s of haHousekeepingInterval, ours is to 2 s. Row → tests; without a folder, they are here::

    N1   test_network::test_n1_*; in one memory: ../ha/test_both_ends::test_a_slave_survives_whatever_the_line_does
    N2   test_network::test_n2_*
    N3   test_network::test_n3_*
    N4   test_network::test_n4_*; ../ha/test_master::test_only_whole_reports_are_signs_of_life
    N5   test_network::test_n5_*; at every offset of the conversation:
         ../ha/test_both_ends::test_a_cut_at_any_byte_leaves_a_slave_that_gets_the_rest
    N6   test_network::test_n6_*
    N7   test_network::test_n7_*; ../ha/test_master::test_what_waits_for_a_slave_that_does_not_read_is_bounded
    N8   test_network::test_n8_*
    N9   test_network::test_n9_*
    N10  test_network::test_n10_*
    N11  test_network::test_n11_*
    N12  test_network::test_n12_*
    P1   test_process::test_p1_*; puts: ../test_crash_points; behind a Java master:
         ../interop/test_faults::test_a_slave_killed_at_random_moments_has_every_byte_it_reported_and_ends_equal
    P2   test_process::test_p2_*
    P3   test_process::test_p3_*; ../test_node::test_a_slave_told_to_stop_while_it_copies_leaves_all_clean,
         ../test_node::test_a_master_told_to_stop_does_not_wait_for_a_slave_that_takes_nothing
    P4   test_process::test_p4_*; ../test_node::test_sighup_reopens_the_log_file
    P5   ../test_node::test_a_second_node_on_one_store_is_refused; ../store/test_lockfile
    P6   ../test_node::test_an_abort_file_of_a_dead_node_means_recovery, test_a_pid_file_of_a_dead_node_does_not_matter
    P7   ../test_node::test_a_daemon_whose_standard_files_are_closed
    P8   test_process::test_p8_*; ../test_node::test_64_open_files_are_enough_for_any_number_of_segments
    T1   test_time::test_t1_*
    T2   test_time::test_t2_*
    T3   test_time::RetentionTests
    T4   test_time::test_t1_and_t4_*, test_t2_and_t4_*
    L1   test_load::test_l1_*
    L2   test_load::test_l2_*
    L3   test_load::test_l3_*
    L4   test_load::test_l4_*
    L5   test_load::test_l5_* for seconds; ``python -m tests.faults.soak --minutes 1440`` for a day

What one machine cannot stage, or not without changing it for others: packets lost below TCP (the proxy's kernel
answers for a peer that is gone, so TCP's own retransmission and its end are not seen; N1, N2), the clock of the machine
itself (a shim gives processes another one; T1, T2), a leap second (POSIX time has none; T3), and a cgroup's killer in
place of RLIMIT_AS (it is SIGKILL, as in P1; P8).
"""
