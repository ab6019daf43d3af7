// A core that only makes traffic, to test the harness of the real one. It has these registers of the real one:
// control to interrupt_status, batch_address (where it reads), completion_address (where it writes), count (bursts in
// the lower half, beats of each in the upper one) and port_k (what port k does: bit 0 reads, 1 writes, 2 is ready every
// second clock only, 3 writes every second byte). beats_read_k is a digest of what port k read, and error the responses:
// two bits of reads, two of writes, a port.
// BYTES (of a beat) and PORTS, 1 or 2, are defined before this text; FAULTS adds the input fault, see traffic_port.

module relay_eps(
    input ap_clk, input ap_rst_n, output interrupt,
`ifdef FAULTS
    input [7:0] fault,
`endif
`define CHANNEL(k, x) \
    output [63:0] m_axi_port_``k``_``x``addr, output [7:0] m_axi_port_``k``_``x``len, \
    output [2:0] m_axi_port_``k``_``x``size, output [1:0] m_axi_port_``k``_``x``burst, \
    output m_axi_port_``k``_``x``lock, output [3:0] m_axi_port_``k``_``x``cache, \
    output [2:0] m_axi_port_``k``_``x``prot, output m_axi_port_``k``_``x``valid, input m_axi_port_``k``_``x``ready,
`define MANAGER(k) \
    `CHANNEL(k, aw) `CHANNEL(k, ar) \
    output [8*`BYTES-1:0] m_axi_port_``k``_wdata, output [`BYTES-1:0] m_axi_port_``k``_wstrb, \
    output m_axi_port_``k``_wlast, output m_axi_port_``k``_wvalid, input m_axi_port_``k``_wready, \
    input [1:0] m_axi_port_``k``_bresp, input m_axi_port_``k``_bvalid, output m_axi_port_``k``_bready, \
    input [8*`BYTES-1:0] m_axi_port_``k``_rdata, input [1:0] m_axi_port_``k``_rresp, \
    input m_axi_port_``k``_rlast, input m_axi_port_``k``_rvalid, output m_axi_port_``k``_rready,
    `MANAGER(0)
`ifdef TWO
    `MANAGER(1)
`endif
    input [11:0] s_axi_control_awaddr, input s_axi_control_awvalid, output s_axi_control_awready,
    input [31:0] s_axi_control_wdata, input [3:0] s_axi_control_wstrb, input s_axi_control_wvalid,
    output s_axi_control_wready, output [1:0] s_axi_control_bresp, output reg s_axi_control_bvalid,
    input s_axi_control_bready, input [11:0] s_axi_control_araddr, input s_axi_control_arvalid,
    output s_axi_control_arready, output reg [31:0] s_axi_control_rdata, output [1:0] s_axi_control_rresp,
    output reg s_axi_control_rvalid, input s_axi_control_rready);

    reg [31:0] words [0:31];
    reg busy, done, waiting, go;
    wire [1:0] idle;
    wire [63:0] digest [0:1];
    wire [3:0] responses [0:1];
    wire written = s_axi_control_awvalid & s_axi_control_wvalid & ~s_axi_control_bvalid;
    assign s_axi_control_awready = written;
    assign s_axi_control_wready = written;
    assign s_axi_control_arready = ~s_axi_control_rvalid;
    // 0xFF0 is a register that answers with an error, 0xFF4 one that does not answer.
    assign s_axi_control_bresp = {s_axi_control_awaddr == 12'hff0, 1'b0};
    assign s_axi_control_rresp = {s_axi_control_araddr == 12'hff0, 1'b0};
    assign interrupt = waiting & words[1][0];
    wire ends = busy & ~go & (&idle);
    wire turns = written & s_axi_control_awaddr == 12'h00c & s_axi_control_wdata[0];
    integer byte_;

    always @(posedge ap_clk) begin
        go <= 0;
        if (written) begin
            for (byte_ = 0; byte_ < 4; byte_ = byte_ + 1)
                if (s_axi_control_wstrb[byte_] & s_axi_control_awaddr[11:7] == 0)
                    words[s_axi_control_awaddr[6:2]][8*byte_ +: 8] <= s_axi_control_wdata[8*byte_ +: 8];
            if (s_axi_control_awaddr == 0 & s_axi_control_wdata[0]) begin go <= 1; busy <= 1; end
        end
        if (written) s_axi_control_bvalid <= s_axi_control_awaddr != 12'hff4;
        else if (s_axi_control_bready) s_axi_control_bvalid <= 0;
        if (s_axi_control_arvalid & s_axi_control_arready) begin
            s_axi_control_rvalid <= 1;
            case (s_axi_control_araddr)
                12'h000: begin s_axi_control_rdata <= {28'b0, ~busy, ~busy, done, busy}; done <= 0; end
                12'h00c: s_axi_control_rdata <= {31'b0, waiting};
                12'h120: s_axi_control_rdata <= {24'b0, responses[1], responses[0]};
                12'h150: s_axi_control_rdata <= digest[0][31:0];
                12'h154: s_axi_control_rdata <= digest[0][63:32];
                12'h158: s_axi_control_rdata <= digest[1][31:0];
                12'h15c: s_axi_control_rdata <= digest[1][63:32];
                default: s_axi_control_rdata <= words[s_axi_control_araddr[6:2]];
            endcase
        end else if (s_axi_control_rready) s_axi_control_rvalid <= 0;
        waiting <= (waiting ^ turns) | (ends & words[2][0]);
        if (ends) begin busy <= 0; done <= 1; end
        if (~ap_rst_n) begin
            {s_axi_control_bvalid, s_axi_control_rvalid, busy, done, waiting, go} <= 0;
            words[1] <= 0; words[2] <= 0; words[12] <= 0; words[15] <= 0;
        end
    end

`ifdef FAULTS
`define FAULT fault
`else
`define FAULT 8'd0
`endif
`define PORT(k) \
    traffic_port #(.BYTES(`BYTES), .NUMBER(k)) port_``k``( \
        .clk(ap_clk), .rst(~ap_rst_n), .fault(`FAULT), .go(go), .mode(words[12 + 3 * k][3:0]), .idle(idle[k]), \
        .reads_at({words[5], words[4]}), .writes_at({words[10], words[9]}), \
        .count(words[7][15:0]), .len(words[7][23:16] - 8'd1), .digest(digest[k]), .responses(responses[k]), \
        .awaddr(m_axi_port_``k``_awaddr), .awlen(m_axi_port_``k``_awlen), .awsize(m_axi_port_``k``_awsize), \
        .awburst(m_axi_port_``k``_awburst), .awlock(m_axi_port_``k``_awlock), .awcache(m_axi_port_``k``_awcache), \
        .awvalid(m_axi_port_``k``_awvalid), .awready(m_axi_port_``k``_awready), \
        .araddr(m_axi_port_``k``_araddr), .arlen(m_axi_port_``k``_arlen), .arsize(m_axi_port_``k``_arsize), \
        .arburst(m_axi_port_``k``_arburst), .arlock(m_axi_port_``k``_arlock), .arcache(m_axi_port_``k``_arcache), \
        .arvalid(m_axi_port_``k``_arvalid), .arready(m_axi_port_``k``_arready), \
        .wdata(m_axi_port_``k``_wdata), .wstrb(m_axi_port_``k``_wstrb), .wlast(m_axi_port_``k``_wlast), \
        .wvalid(m_axi_port_``k``_wvalid), .wready(m_axi_port_``k``_wready), .bresp(m_axi_port_``k``_bresp), \
        .bvalid(m_axi_port_``k``_bvalid), .bready(m_axi_port_``k``_bready), .rdata(m_axi_port_``k``_rdata), \
        .rresp(m_axi_port_``k``_rresp), .rlast(m_axi_port_``k``_rlast), .rvalid(m_axi_port_``k``_rvalid), \
        .rready(m_axi_port_``k``_rready)); \
    assign m_axi_port_``k``_awprot = 0; \
    assign m_axi_port_``k``_arprot = 0;
    `PORT(0)
`ifdef TWO
    `PORT(1)
`else
    assign idle[1] = 1;
    assign digest[1] = 0;
    assign responses[1] = 0;
`endif
endmodule

// Word w of the n-th beat that is written is {NUMBER, w, n}. Faults, which break the protocol:
//  1 an address that waits goes away, 2 changes; 3 data that waits goes away, 4 changes; 5 no WLAST; 6 a WLAST early;
//  7 a beat more than asked; 8 AxSIZE; 9 AxBURST; 10 AxCACHE; 11 AxLOCK.
module traffic_port #(parameter BYTES = 8, parameter NUMBER = 0) (
    input clk, input rst, input [7:0] fault, input go, input [3:0] mode, output idle,
    input [63:0] reads_at, input [63:0] writes_at, input [15:0] count, input [7:0] len,
    output reg [63:0] digest, output reg [3:0] responses,
    output [63:0] awaddr, output [7:0] awlen, output [2:0] awsize, output [1:0] awburst, output awlock,
    output [3:0] awcache, output awvalid, input awready,
    output [63:0] araddr, output [7:0] arlen, output [2:0] arsize, output [1:0] arburst, output arlock,
    output [3:0] arcache, output arvalid, input arready,
    output [8*BYTES-1:0] wdata, output [BYTES-1:0] wstrb, output wlast, output wvalid, input wready,
    input [1:0] bresp, input bvalid, output bready,
    input [8*BYTES-1:0] rdata, input [1:0] rresp, input rlast, input rvalid, output rready);

    reg [63:0] read_address, write_address;
    // Bursts whose address, data and response are to come.
    reg [15:0] ar_left, r_left, aw_left, w_left, b_left;
    reg [7:0] beat;
    reg [31:0] beats;
    reg odd, extra, held_w;
    reg held_ar, held_aw;

    assign idle = ~|{ar_left, r_left, aw_left, w_left, b_left} & ~extra;
    // What waits for the second clock or longer, and is then broken in every second one.
    assign arvalid = |ar_left & ~(fault == 1 & held_ar & odd);
    assign awvalid = |aw_left & ~(fault == 1 & held_aw & odd);
    assign araddr = read_address ^ {51'b0, fault == 2 & held_ar & odd, 12'b0};
    assign awaddr = write_address ^ {51'b0, fault == 2 & held_aw & odd, 12'b0};
    assign {arlen, awlen} = {2{len}};
    assign {arsize, awsize} = {2{fault == 8 ? 3'd1 : 3'($clog2(BYTES))}};
    assign {arburst, awburst} = {2{fault == 9 ? 2'd0 : 2'd1}};
    assign {arcache, awcache} = {2{fault == 10 ? 4'b0010 : 4'b0011}};
    assign {arlock, awlock} = {2{fault == 11}};
    // Data may wait beside its address.
    assign wvalid = (|w_left | extra) & ~(fault == 3 & held_w & odd);
    assign wlast = fault == 5 ? 1'b0 : fault == 6 ? beat == len - 8'd1 : beat == len;
    assign wstrb = mode[3] ? {BYTES/2{2'b01}} : {BYTES{1'b1}};
    genvar w;
    generate for (w = 0; w < BYTES / 8; w = w + 1) begin : words
        assign wdata[64*w +: 64] = {8'(NUMBER), 8'(w), 16'b0, beats ^ {31'b0, fault == 4 & held_w & odd}};
    end endgenerate
    assign rready = |r_left & (~mode[2] | odd);
    assign bready = |b_left & (~mode[2] | odd);

    reg [63:0] folded;
    integer word;
    always @(*) begin
        folded = 0;
        for (word = 0; word < BYTES / 8; word = word + 1)
            folded = {folded[62:0], folded[63]} ^ rdata[64*word +: 64];
    end

    always @(posedge clk) begin
        odd <= ~odd;
        held_ar <= |ar_left & ~arready;
        held_aw <= |aw_left & ~awready;
        held_w <= (|w_left | extra) & ~wready;
        if (arvalid & arready) begin
            ar_left <= ar_left - 1;
            read_address <= read_address + BYTES * (len + 64'd1);
        end
        if (awvalid & awready) begin
            aw_left <= aw_left - 1;
            write_address <= write_address + BYTES * (len + 64'd1);
        end
        if (wvalid & wready) begin
            beats <= beats + 1;
            beat <= beat + 1;
            if (|w_left & beat == len) begin w_left <= w_left - 1; beat <= 0; end
        end
        if (fault == 7 & |w_left) extra <= 1;
        if (rvalid & rready) begin
            digest <= {digest[62:0], digest[63]} ^ folded;
            responses[1:0] <= responses[1:0] | rresp;
            if (rlast) r_left <= r_left - 1;
        end
        if (bvalid & bready) begin
            responses[3:2] <= responses[3:2] | bresp;
            b_left <= b_left - 1;
        end
        if (go) begin
            read_address <= reads_at;
            write_address <= writes_at;
            {beat, beats, digest, responses} <= 0;
            if (mode[0]) begin ar_left <= count; r_left <= count; end
            if (mode[1]) begin aw_left <= count; w_left <= count; b_left <= count; end
        end
        if (rst) {ar_left, r_left, aw_left, w_left, b_left, beat, beats, extra, odd, held_ar, held_aw, held_w} <= 0;
    end
endmodule
