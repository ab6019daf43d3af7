// What Lattice's MULT18X18D does, as far as the products use it: two 18-bit operands, their signs, and registers at the
// inputs, in the multiplier and at the output, each on one of four clocks with one of four enables and synchronous
// resets, or left out. Shifting operands on to the next multiplier is not modelled: SOURCEA and SOURCEB must be 0.

module MULT18X18D #(
    parameter REG_INPUTA_CLK = "NONE", parameter REG_INPUTA_CE = "CE0", parameter REG_INPUTA_RST = "RST0",
    parameter REG_INPUTB_CLK = "NONE", parameter REG_INPUTB_CE = "CE0", parameter REG_INPUTB_RST = "RST0",
    parameter REG_PIPELINE_CLK = "NONE", parameter REG_PIPELINE_CE = "CE0", parameter REG_PIPELINE_RST = "RST0",
    parameter REG_OUTPUT_CLK = "NONE", parameter REG_OUTPUT_CE = "CE0", parameter REG_OUTPUT_RST = "RST0",
    parameter SOURCEB_MODE = "B_SHIFT", parameter MULT_BYPASS = "DISABLED", parameter RESETMODE = "SYNC"
) (
    input A17, A16, A15, A14, A13, A12, A11, A10, A9, A8, A7, A6, A5, A4, A3, A2, A1, A0,
    input B17, B16, B15, B14, B13, B12, B11, B10, B9, B8, B7, B6, B5, B4, B3, B2, B1, B0,
    input SIGNEDA, SIGNEDB, SOURCEA, SOURCEB,
    input CLK3, CLK2, CLK1, CLK0, CE3, CE2, CE1, CE0, RST3, RST2, RST1, RST0,
    output P35, P34, P33, P32, P31, P30, P29, P28, P27, P26, P25, P24, P23, P22, P21, P20, P19, P18, P17, P16, P15,
        P14, P13, P12, P11, P10, P9, P8, P7, P6, P5, P4, P3, P2, P1, P0,
    output SIGNEDP
);
    wire [3:0] clocks = {CLK3, CLK2, CLK1, CLK0};
    wire [3:0] enables = {CE3, CE2, CE1, CE0};
    wire [3:0] resets = {RST3, RST2, RST1, RST0};

    // A sign travels with its operand.
    wire [18:0] a, b;
    mult18x18d_register #(.WIDTH(19), .CLK(REG_INPUTA_CLK), .CE(REG_INPUTA_CE), .RST(REG_INPUTA_RST)) input_a (
        clocks, enables, resets,
        {SIGNEDA, A17, A16, A15, A14, A13, A12, A11, A10, A9, A8, A7, A6, A5, A4, A3, A2, A1, A0},
        a
    );
    mult18x18d_register #(.WIDTH(19), .CLK(REG_INPUTB_CLK), .CE(REG_INPUTB_CE), .RST(REG_INPUTB_RST)) input_b (
        clocks, enables, resets,
        {SIGNEDB, B17, B16, B15, B14, B13, B12, B11, B10, B9, B8, B7, B6, B5, B4, B3, B2, B1, B0},
        b
    );

    // With a sign bit on top, which is 0 for an unsigned operand, both are signed.
    wire signed [36:0] wide_a = {{19{a[18] & a[17]}}, a[17:0]};
    wire signed [36:0] wide_b = {{19{b[18] & b[17]}}, b[17:0]};
    wire signed [36:0] product = wide_a * wide_b;
    wire [36:0] piped, result;
    mult18x18d_register #(
        .WIDTH(37), .CLK(REG_PIPELINE_CLK), .CE(REG_PIPELINE_CE), .RST(REG_PIPELINE_RST)
    ) pipeline (clocks, enables, resets, {a[18] | b[18], product[35:0]}, piped);
    mult18x18d_register #(
        .WIDTH(37), .CLK(REG_OUTPUT_CLK), .CE(REG_OUTPUT_CE), .RST(REG_OUTPUT_RST)
    ) output_ (clocks, enables, resets, piped, result);
    assign {SIGNEDP,
        P35, P34, P33, P32, P31, P30, P29, P28, P27, P26, P25, P24, P23, P22, P21, P20, P19, P18,
        P17, P16, P15, P14, P13, P12, P11, P10, P9, P8, P7, P6, P5, P4, P3, P2, P1, P0} = result;

    always @* begin
        if (SOURCEA || SOURCEB) $fatal(1, "MULT18X18D: shifted operands are not modelled");
    end
    initial begin
        if (MULT_BYPASS != "DISABLED") $fatal(1, "MULT18X18D: the bypass is not modelled");
        if (RESETMODE != "SYNC") $fatal(1, "MULT18X18D: asynchronous resets are not modelled");
    end
endmodule

// One of the block's registers, or none where CLK is "NONE". A reset goes before the enable.
module mult18x18d_register #(
    parameter WIDTH = 1, parameter CLK = "NONE", parameter CE = "CE0", parameter RST = "RST0"
) (
    input [3:0] clocks, input [3:0] enables, input [3:0] resets, input [WIDTH-1:0] d, output [WIDTH-1:0] q
);
    localparam integer clock = CLK == "CLK1" ? 1 : CLK == "CLK2" ? 2 : CLK == "CLK3" ? 3 : 0;
    localparam integer enable = CE == "CE1" ? 1 : CE == "CE2" ? 2 : CE == "CE3" ? 3 : 0;
    localparam integer reset = RST == "RST1" ? 1 : RST == "RST2" ? 2 : RST == "RST3" ? 3 : 0;

    generate
        if (CLK == "NONE") begin : none
            assign q = d;
        end else begin : one
            reg [WIDTH-1:0] held;
            always @(posedge clocks[clock]) begin
                if (resets[reset]) held <= 0;
                else if (enables[enable]) held <= d;
            end
            assign q = held;
        end
    endgenerate
endmodule
